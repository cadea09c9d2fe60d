"""An input that is too long or empty, by its place: vLLM says neither which one it is nor its field."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from orthrus.engine.compat import VLLMValidationError
from orthrus.server.errors import RequestError, is_int
from orthrus.server.inputs import COHERE_CUTS, COHERE_INPUTS, CUTS, SPLITS

# What vLLM calls a text that is too long before and after its tokens are known (renderers/params.py).
TOO_LONG = ("input_text", "input_tokens")
PLACE = "orthrus_place"
LISTS = ("input", *COHERE_INPUTS)
# Routes with one prompt, by the field that it is made of.
FIELDS = {
    "/v1/chat/completions": "messages",
    "/v1/chat/completions/batch": "messages",
    "/v1/responses": "input",
    "/v1/completions": "prompt",
    "/v1/embeddings": "input",
    "/pooling": "input",
}


def too_long(error: VLLMValidationError, where: str, param: str, limit: int, advice: str) -> RequestError:
    """The refusal that stands for vLLM's error; `limit` in tokens. vLLM counts up to one token more only."""
    count = error.value if isinstance(error.value, int) else limit + 1
    unit = ""
    if error.parameter == "input_text":
        given, unit = f"{count} characters", " tokens"
    elif count > limit + 1:
        given = f"{count} tokens"
    else:
        given = f"{count} or more tokens"
    return RequestError(f"{where} has {given}; this model takes at most {limit}{unit} ({advice})", param)


def is_too_long(error: Exception) -> bool:
    """Whether vLLM found a prompt longer than the model."""
    return isinstance(error, VLLMValidationError) and error.parameter in TOO_LONG


def name_inputs(io_processor: Any, limit: int) -> None:
    """Let one of vLLM's pooling I/O processors name the input that is too long (entrypoints/pooling/base)."""
    create, render = io_processor.get_request_factory_online, io_processor.render_async

    def get_request_factory_online(ctx: Any) -> Any:
        requests = create(ctx)
        field = next((name for name in LISTS if getattr(ctx.request, name, None) is not None), "messages")
        given = getattr(ctx.request, field, None)
        several = field != "messages" and isinstance(given, list) and bool(given) and not is_int(given[0])
        for i, request in enumerate(requests):
            request[PLACE] = (field, f"{field}[{i}]" if several else field)
        return requests

    async def render_async(request: Any) -> Any:
        param, where = request.pop(PLACE, ("input", "input"))
        try:
            return await render(request)
        except VLLMValidationError as error:
            if not is_too_long(error):
                raise
            advice = COHERE_CUTS if param in COHERE_INPUTS else SPLITS
            raise too_long(error, where, param, limit, advice) from error

    io_processor.get_request_factory_online = get_request_factory_online
    io_processor.render_async = render_async


def name_prompts(online_renderer: Any, limit: int) -> None:
    """Let vLLM's renderer name the prompt that is too long, or empty (renderers/online_renderer.py).

    A text may be empty where the tokenizer begins each with a token.
    """
    preprocess = online_renderer.preprocess_cmpl

    async def preprocess_cmpl(request: Any, prompts: Sequence[Any], **named: Any) -> list[Any]:
        async def one(i: int, prompt: Any) -> list[Any]:
            where = f"prompt[{i}]" if len(prompts) > 1 else "prompt"
            try:
                inputs: list[Any] = await preprocess(request, [prompt], **named)
            except VLLMValidationError as error:
                if not is_too_long(error):
                    raise
                raise too_long(error, where, "prompt", limit, CUTS) from error
            if any(engine_input.get("prompt_token_ids") == [] for engine_input in inputs):
                raise RequestError(f"{where} has no tokens; give at least one character or token id", where)
            return inputs

        rendered = await asyncio.gather(*(one(i, prompt) for i, prompt in enumerate(prompts)))
        return [engine_input for inputs in rendered for engine_input in inputs]

    online_renderer.preprocess_cmpl = preprocess_cmpl
