"""How errors reach a client: in OpenAI's form, one sentence for a wrong body, 503 for a dead engine."""

from __future__ import annotations

from argparse import Namespace
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from orthrus.engine.compat import AuthenticationMiddleware, GenerationError, GracefulHTTPError, VLLMError
from orthrus.server.errors import RequestError, clipped, error_body
from orthrus.server.findings import explain
from orthrus.server.lengths import FIELDS, is_too_long, too_long
from orthrus.server.routes import aliases
from orthrus.server.shutdown import ENGINE_DIED, why_unavailable


def error_response(message: str, status: int, param: str | None = None, headers: Any = None) -> JSONResponse:
    """An answer in OpenAI's form; headers are those of the error (`Allow`, `Retry-After`)."""
    return JSONResponse(error_body(message, status, param), status_code=status, headers=headers)


async def on_refusal(_request: Request, error: Exception) -> Response:
    """A request that one of our checks refuses."""
    assert isinstance(error, RequestError)
    return error_response(str(error), error.status, error.param)


async def on_http_error(request: Request, error: Exception) -> Response:
    """What Starlette, FastAPI and our guard raise by status: an unknown path, a body that is too large."""
    assert isinstance(error, StarletteHTTPException)
    path, headers = clipped(request.url.path), error.headers
    if error.status_code == HTTPStatus.NOT_FOUND and error.detail == HTTPStatus.NOT_FOUND.phrase:
        return error_response(f"there is no route {path}", error.status_code)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (headers or {}).get("Allow", "other methods")
        return error_response(
            f"{path} takes {allowed}, not {request.method}", error.status_code, None, headers
        )
    cause = error.__cause__
    if error.status_code == HTTPStatus.BAD_REQUEST and isinstance(cause, RecursionError):
        return error_response("the request body is nested too deep", error.status_code, "body")
    if error.status_code == HTTPStatus.BAD_REQUEST and isinstance(cause, ValueError):
        return error_response(f"the request body is not JSON: {cause}", error.status_code, "body")
    return error_response(str(error.detail), error.status_code, None, headers)


async def on_disconnect(_request: Request, error: Exception) -> Response:
    """A client that left before its body was whole hears no answer, and is no error of the server."""
    assert isinstance(error, ClientDisconnect)
    return Response(status_code=HTTPStatus.BAD_REQUEST)


async def on_wrong_body(_request: Request, error: Exception) -> Response:
    """What pydantic finds wrong with a body, a query or a header."""
    assert isinstance(error, RequestValidationError)
    message, field = explain(error.errors(), error.body)
    return error_response(message, HTTPStatus.BAD_REQUEST, field)


async def on_wrong_data(request: Request, error: Exception) -> Response:
    """What pydantic finds after vLLM has taken the body: it reads the parts of messages late."""
    assert isinstance(error, ValidationError)
    message, field = explain(error.errors(), getattr(request, "_json", None) or {})
    return error_response(message, HTTPStatus.BAD_REQUEST, field)


def install(app: FastAPI, engine_client: Any, args: Namespace) -> None:
    """Put our handlers before vLLM's (entrypoints/serve/exception_handling), which must be registered."""
    vllm_error: Any = app.exception_handlers[VLLMError]

    async def on_vllm_error(request: Request, error: Exception) -> Response:
        field = FIELDS.get(request.url.path.removeprefix(request.scope.get("root_path", "")))
        if field is not None and is_too_long(error):
            limit = engine_client.vllm_config.model_config.max_model_len
            return await on_refusal(request, too_long(error, field, field, limit, "send a shorter one"))
        response: Response = await vllm_error(request, error)
        if response.status_code == HTTPStatus.NOT_FOUND:  # of a route of embeddings: no field, no aliases
            served = aliases(request.app.state.openai_serving_models)
            return error_response(f"{error} {served}", HTTPStatus.NOT_FOUND, "model")
        if response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            return response
        if not engine_client.errored:
            field = getattr(request.state, "orthrus_output_field", None)
            return dead_end(field) if field and type(error) is GenerationError else response
        reason = why_unavailable(engine_client, args) or ENGINE_DIED
        if reason is ENGINE_DIED:
            await vllm_error(request, engine_client.dead_error)  # ends the server, but answers 500
        died: Response = await vllm_error(request, GracefulHTTPError(reason, HTTPStatus.SERVICE_UNAVAILABLE))
        return died

    app.add_exception_handler(RequestError, on_refusal)
    app.add_exception_handler(StarletteHTTPException, on_http_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientDisconnect, on_disconnect)
    app.add_exception_handler(RequestValidationError, on_wrong_body)
    app.add_exception_handler(ValidationError, on_wrong_data)
    app.add_exception_handler(VLLMError, on_vllm_error)
    # vLLM's check of the key stands before our guard, and answers in a form of its own; it comes behind.
    app.user_middleware.sort(key=lambda middleware: middleware.cls is AuthenticationMiddleware)
    # The SageMaker standards have built the stack already, with the handlers of vLLM alone.
    app.middleware_stack = app.build_middleware_stack()


def dead_end(field: str) -> Response:
    """The answer where the engine failed a request with a form of output, and goes on with others.

    It does so where the grammar cannot be compiled, or allows no next token (v1/core/sched/scheduler.py).
    """
    message = f"the schema or grammar of {field} cannot be used, or came to a point where no text fits it"
    return error_response(message, HTTPStatus.BAD_REQUEST, field)
