"""vLLM's routes, with our checks of the JSON body in front of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute

from orthrus.server.checks import EmbeddingLimits, parse_body
from orthrus.server.dead_ends import structured_field
from orthrus.server.errors import RequestError
from orthrus.server.fields import EMBEDDINGS
from orthrus.server.generation import check_generation
from orthrus.server.messages import refuse_bad_message
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
OPENAI_CHATS = ("/v1/chat/completions", "/tokenize", "/invocations")  # and what lies below them
LONGEST_NAME = 200


def check_first(app: FastAPI) -> None:
    """Add every POST route of vLLM's once more, checked; a plugin's route replaces vLLM's.

    (vllm/plugins/endpoint_plugins/interface.py, `attach_endpoint_plugins`.)
    """
    for route in list(app.routes):
        if isinstance(route, APIRoute) and "POST" in route.methods and route.path != EMBEDDINGS:
            check = CHECKS.get(route.path)
            app.add_api_route(
                route.path,
                route.endpoint,
                methods=list(route.methods),
                dependencies=[
                    *route.dependencies,
                    Depends(_checked(check) if check else _generating(route.path)),
                ],
                responses=route.responses,
                response_class=route.response_class,
                include_in_schema=route.include_in_schema,
            )


def _checked(check: Check) -> Callable[[Request], Awaitable[None]]:
    async def checked(raw_request: Request) -> None:
        if not await raw_request.body():
            raise RequestError("the request body is empty; a JSON object is required", "body")
        body = await raw_request.json()  # FastAPI has parsed it, and validates this very object next
        state = raw_request.app.state
        request = check(body, state.orthrus_limits)
        refuse_bad_message(request, "messages", "input")
        refuse_long_model_name(request.get("model"), state.openai_serving_models)
        body.clear()
        body.update(request)

    return checked


def _generating(path: str) -> Callable[[Request], Awaitable[None]]:
    async def checked(raw_request: Request) -> None:
        content_type = raw_request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json" or not await raw_request.body():
            return
        if not hasattr(raw_request, "_json"):  # a route that reads its JSON by itself, after this
            parse_body(await raw_request.body())
        body = await raw_request.json()
        if not isinstance(body, dict):
            raise RequestError("the request body must be a JSON object", "body")
        if path == "/scale_elastic_ep":
            raise RequestError("Orthrus runs the number of replicas that it was started with", "body", 501)
        state = raw_request.app.state
        check_generation(body, state.orthrus_limits, path)
        if path.startswith(OPENAI_CHATS):
            refuse_bad_message(body, "messages")
        refuse_long_model_name(body.get("model"), state.openai_serving_models)
        raw_request.state.orthrus_output_field = structured_field(body)

    return checked


def refuse_long_model_name(model: object, models: Any) -> None:
    """Refuse a model that is not served if its name is too long to be repeated. RequestError."""
    if not isinstance(model, str) or len(model) <= LONGEST_NAME:
        return
    if not models.is_base_model(model) and model not in models.lora_requests:
        message = f"The model `{model[:LONGEST_NAME]}…` ({len(model)} characters) does not exist."
        raise RequestError(f"{message} {aliases(models)}", "model", status=404)


def aliases(models: Any) -> str:
    """The names of the served model, in the words of vLLM (entrypoints/serve/engine/serving.py)."""
    return f"Valid aliases: {', '.join(model.name for model in models.base_model_paths)}."
