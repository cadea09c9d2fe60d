"""vLLM's pooling, scoring and Cohere routes, with our checks in front of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute

from orthrus.server.checks import EmbeddingLimits
from orthrus.server.errors import RequestError
from orthrus.server.handlers import raise_refusal
from orthrus.server.route_checks import check_cohere, check_pooling, check_rerank, check_score

Check = Callable[[object, EmbeddingLimits], dict[str, Any]]
CHECKS: dict[str, Check] = {
    "/pooling": check_pooling,
    "/score": check_score,
    "/v1/score": check_score,
    "/rerank": check_rerank,
    "/v1/rerank": check_rerank,
    "/v2/rerank": check_rerank,
    "/v2/embed": check_cohere,
}


def check_first(app: FastAPI) -> None:
    """Add those of vLLM's routes that are in CHECKS once more, checked; a plugin's route replaces vLLM's.

    (vllm/plugins/endpoint_plugins/interface.py, `attach_endpoint_plugins`.)
    """
    for route in list(app.routes):
        if isinstance(route, APIRoute) and route.path in CHECKS:
            app.add_api_route(
                route.path,
                route.endpoint,
                methods=list(route.methods),
                dependencies=[*route.dependencies, Depends(_checked(CHECKS[route.path]))],
                responses=route.responses,
            )


def _checked(check: Check) -> Callable[[Request], Awaitable[None]]:
    async def checked(raw_request: Request) -> None:
        try:
            if not await raw_request.body():
                raise RequestError("the request body is empty; a JSON object is required", "body")
            body = await raw_request.json()  # FastAPI has parsed it, and validates this very object next
            request = check(body, raw_request.app.state.orthrus_limits)
        except RequestError as error:
            raise_refusal(error)
        body.clear()
        body.update(request)

    return checked
