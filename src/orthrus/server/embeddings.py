"""`POST /v1/embeddings` over vLLM's own handler: our checks before it, our request fields through it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import TypeAdapter, ValidationError

from orthrus.engine.compat import (
    EmbeddingRequest,
    GenerationError,
    GracefulHTTPError,
    ServingEmbedding,
    VLLMValidationError,
    load_aware_call,
    validate_json_request,
    with_cancellation,
)
from orthrus.engine.config import OrthrusConfig
from orthrus.engine.embedding import POOLING_KEY
from orthrus.server.checks import EmbeddingLimits, RequestError, check_embedding, parse_body

router = APIRouter()
_REQUEST: TypeAdapter[Any] = TypeAdapter(EmbeddingRequest)


def honour_pooling_field(io_processor: Any) -> None:
    """Carry a request's `pooling` field through one of vLLM's pooling routes (entrypoints/pooling)."""
    create = io_processor.create_pooling_params

    def create_pooling_params(request: Any) -> Any:
        params = create(request)
        pooling = (getattr(request, "model_extra", None) or {}).get(POOLING_KEY)
        if pooling is not None:
            params.extra_kwargs = {**(params.extra_kwargs or {}), POOLING_KEY: pooling}
        return params

    io_processor.create_pooling_params = create_pooling_params


class MixedServingEmbedding(ServingEmbedding):
    """vLLM's handler (entrypoints/pooling/embed/serving.py) that refuses to answer with NaN."""

    async def _preprocessing(self, io_processor: Any, ctx: Any) -> None:
        await super()._preprocessing(io_processor, ctx)
        for i, engine_input in enumerate(ctx.engine_inputs):
            if not engine_input["prompts"].get("prompt_token_ids", [0]):
                raise VLLMValidationError(f"input[{i}] has no tokens", parameter="input")

    def _build_response(self, ctx: Any) -> Response:
        for i, result in enumerate(ctx.final_res_batch):
            if not bool(torch.isfinite(result.outputs.data).all()):
                raise GenerationError(f"the embedding of input[{i}] is not finite (NaN or infinity)")
        response: Response = super()._build_response(ctx)
        return response


def limits_of(vllm_config: Any, max_inputs: int) -> EmbeddingLimits:
    """The limits that a server's configuration implies."""
    model = vllm_config.model_config
    config = OrthrusConfig.of(vllm_config)
    return EmbeddingLimits(
        max_model_len=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        native_size=config.checkpoint.size if config.checkpoint else model.embedding_size,
        max_inputs=max_inputs,
        allowed_pooling=config.allowed_pooling,
        smaller_dimensions=model.is_matryoshka,
    )


async def content_of(raw_request: Request) -> bytes:
    """The body, read before the handler starts: its watch for a disconnect reads from the client too."""
    return await raw_request.body()


@router.post(
    "/v1/embeddings",
    dependencies=[Depends(validate_json_request)],
    openapi_extra={"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}},
)
@with_cancellation
@load_aware_call
async def create_embedding(raw_request: Request, content: Annotated[bytes, Depends(content_of)]) -> Response:
    """OpenAI's embeddings route; `pooling` and `normalize` are ours (see docs/server.md)."""
    state = raw_request.app.state
    try:
        body = check_embedding(parse_body(content), state.orthrus_limits)
        request = _REQUEST.validate_python(body)
    except RequestError as error:
        if error.status != HTTPStatus.BAD_REQUEST:
            raise GracefulHTTPError(str(error), HTTPStatus(error.status)) from error
        raise VLLMValidationError(str(error), parameter=error.param) from error
    except ValidationError as error:
        raise _first_error(error, body) from error
    response: Response = await state.serving_embedding(request, raw_request)
    return response


def _first_error(error: ValidationError, body: dict[str, Any]) -> Exception:
    """The finding of the request models that says most: the one that names a field of the request."""
    for finding in error.errors():
        field = next((part for part in finding["loc"] if part in body), None)
        if field is not None:
            return VLLMValidationError(f"{field}: {finding['msg']}", parameter=str(field))
    return VLLMValidationError(error.errors()[0]["msg"], parameter="body")
