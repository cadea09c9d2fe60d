"""How errors reach a client: by vLLM's handlers, one sentence for a wrong body, 503 for a dead engine."""

from __future__ import annotations

from argparse import Namespace
from http import HTTPStatus
from typing import Any, NoReturn

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from orthrus.engine.compat import GracefulHTTPError, VLLMError, VLLMValidationError
from orthrus.server.errors import RequestError
from orthrus.server.findings import explain
from orthrus.server.shutdown import ENGINE_DIED, why_unavailable


def raise_refusal(error: RequestError) -> NoReturn:
    """Raise the vLLM error that stands for a refused request."""
    if error.status != HTTPStatus.BAD_REQUEST:
        raise GracefulHTTPError(str(error), HTTPStatus(error.status)) from error
    raise VLLMValidationError(str(error), parameter=error.param) from error


def install(app: FastAPI, engine_client: Any, args: Namespace) -> None:
    """Put our handlers before vLLM's (entrypoints/serve/exception_handling), which must be registered."""
    vllm_error: Any = app.exception_handlers[VLLMError]

    async def on_wrong_body(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        message, field = explain(error.errors(), error.body)
        return await on_vllm_error(request, VLLMValidationError(message, parameter=field))

    async def on_vllm_error(request: Request, error: Exception) -> Response:
        response: Response = await vllm_error(request, error)
        if response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR or not engine_client.errored:
            return response
        await vllm_error(request, engine_client.dead_error)  # ends the server; its own answer would be 500
        reason = why_unavailable(engine_client, args) or ENGINE_DIED
        died: Response = await vllm_error(request, GracefulHTTPError(reason, HTTPStatus.SERVICE_UNAVAILABLE))
        return died

    app.add_exception_handler(RequestValidationError, on_wrong_body)
    app.add_exception_handler(VLLMError, on_vllm_error)
    # The SageMaker standards have built the stack already, with the handlers of vLLM alone.
    app.middleware_stack = app.build_middleware_stack()
