"""`POST /v1/embeddings` over vLLM's own handler: our checks before it, our request fields through it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from orthrus.engine.compat import (
    ServingEmbedding,
    VLLMValidationError,
    load_aware_call,
    validate_json_request,
    with_cancellation,
)
from orthrus.engine.config import OrthrusConfig
from orthrus.engine.embedding import POOLING_KEY, SPANS_KEY
from orthrus.server import spans
from orthrus.server.checks import EmbeddingLimits, check_embedding, parse_body
from orthrus.server.embedding_body import embedding_request
from orthrus.server.routes import refuse_long_model_name
from orthrus.server.shapes import splits, tokenization
from orthrus.server.tokens import refuse_nonfinite
from orthrus.server.windows import Windows

router = APIRouter()


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


def tokenize_for_shapes(io_processor: Any) -> None:
    """Tokenise without the length limit what will be split, and with offsets what has character spans."""
    create = io_processor.get_request_factory_online

    def get_request_factory_online(ctx: Any) -> Any:
        requests = create(ctx)
        extra = _extra(ctx)
        for request in requests:
            request["tok_params"] = tokenization(
                request["tok_params"], split=splits(extra), span_unit=extra.get("span_unit")
            )
        return requests

    io_processor.get_request_factory_online = get_request_factory_online


def put_prompts_before_texts(io_processor: Any) -> None:
    """Put the prompt of an `input_type` right before the text, as sentence-transformers does with its own.

    vLLM sends it as the system's message wherever there is a chat template (entrypoints/pooling/embed,
    `_get_request_factory_cohere_online`), which gives another vector than the checkpoint's own library.
    """
    io_processor._has_chat_template = lambda: False


def _extra(ctx: Any) -> dict[str, Any]:
    """A request's fields that vLLM's own models do not have."""
    return getattr(ctx.request, "model_extra", None) or {}


class MixedServingEmbedding(ServingEmbedding):
    """vLLM's handler (entrypoints/pooling/embed/serving.py) with spans and windows, and without NaN.

    A request with long inputs may come to as many windows as `limits` allows inputs.
    """

    def __init__(self, *args: Any, limits: EmbeddingLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        if OrthrusConfig.of(self.vllm_config).checkpoint is not None:
            put_prompts_before_texts(self.io_processor)

    async def _preprocessing(self, io_processor: Any, ctx: Any) -> None:
        await super()._preprocessing(io_processor, ctx)
        extra = _extra(ctx)
        for i, engine_input in enumerate(ctx.engine_inputs):
            if not engine_input["prompts"].get("prompt_token_ids", [0]):
                raise VLLMValidationError(f"input[{i}] has no tokens", parameter="input")
        ctx.orthrus_windows = None
        if splits(extra):
            ctx.orthrus_windows = Windows.of(
                ctx,
                self.max_model_len,
                extra.get("overlap", 0),
                self._limits.max_inputs,
                self.model_config.pooler_config.use_activation,
            )
        if SPANS_KEY in extra:
            most = OrthrusConfig.of(self.vllm_config).max_spans
            spans.attach(ctx.engine_inputs, extra[SPANS_KEY], extra.get("span_unit") == "char", most)

    def _build_response(self, ctx: Any) -> Response:
        windows = ctx.orthrus_windows
        refuse_nonfinite(ctx.final_res_batch, "embedding", windows.owners if windows else None)
        if windows:
            ctx.final_res_batch = windows.merge(ctx.final_res_batch)
        if SPANS_KEY in _extra(ctx):
            ctx.final_res_batch = spans.one_result_each(ctx.final_res_batch)
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
        allowed_pooling=tuple(head.value for head in config.heads),
        smaller_dimensions=model.is_matryoshka,
        text_only=not model.is_multimodal_model,
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
    """OpenAI's embeddings route; the fields that are ours are in docs/pooling.md."""
    state = raw_request.app.state
    body = check_embedding(parse_body(content), state.orthrus_limits)
    refuse_long_model_name(body.get("model"), state.openai_serving_models)
    response: Response = await state.serving_embedding(embedding_request(body), raw_request)
    return response
