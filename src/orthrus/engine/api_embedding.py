"""The embedding calls of `Engine`: tokenised, run on the engine, and put together as NumPy arrays.

Spans and windows are those of the server (orthrus.server.spans, orthrus.server.windows), so that a program
and an HTTP client get the same vectors for the same fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from orthrus.engine.api_errors import plain_errors
from orthrus.engine.background import all_of
from orthrus.engine.config import OrthrusConfig
from orthrus.server import spans
from orthrus.server.embeddings import limits_of
from orthrus.server.errors import RequestError
from orthrus.server.shapes import tokenization
from orthrus.server.truncation import keeping_beginnings
from orthrus.server.windows import Windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from orthrus.engine.api_inputs import Embeddings
    from orthrus.engine.compat import AsyncLLMEngine


class Embedder:
    """Embeds checked inputs on a running engine. `next_id` names each request, `max_inputs` bounds a call."""

    def __init__(self, llm: AsyncLLMEngine, next_id: Callable[[], str], max_inputs: int) -> None:
        self._llm = llm
        self._renderer = keeping_beginnings(llm.renderer)
        self._next_id = next_id
        self._config = OrthrusConfig.of(llm.vllm_config)
        self.limits = limits_of(llm.vllm_config, max_inputs)

    def check_token_level(self) -> None:
        """Raise RequestError where the engine keeps no hidden states to answer with."""
        if not self._config.pooling_buffer_tokens:
            raise RequestError(
                "token-level output is off: start the Engine with pooling_buffer_tokens", "task"
            )

    async def vectors(self, inputs: Embeddings, lora_request: Any, priority: int) -> NDArray[np.float32]:
        """float32 [vectors, dimensions]: one for each input, or for each span of each input.

        Raises ValueError for what the tokens show to be wrong, FloatingPointError for a NaN or an infinity.
        """
        with plain_errors():
            requests = await self._tokenized(inputs)
            windows = self._windows(inputs, requests)
            if inputs.spans is not None:
                by_characters = inputs.span_unit == "char"
                spans.attach(requests, inputs.spans, by_characters, self._config.max_spans)
            results = await self._run(windows.engine_inputs, lora_request, priority)
        owners = windows.cut.owners if windows.cut else range(len(results))
        _refuse_nonfinite(results, owners)
        if windows.cut:
            results = windows.cut.merge(results)
        if inputs.spans is not None:
            results = spans.one_result_each(results)
        return np.stack([np.asarray(result.outputs.data, dtype=np.float32) for result in results])

    async def token_vectors(
        self, inputs: Embeddings, lora_request: Any, priority: int
    ) -> list[NDArray[np.float32]]:
        """float32 [tokens, dimensions] for each input. Raises as `vectors`."""
        with plain_errors():
            requests = await self._tokenized(inputs)
            results = await self._run(requests, lora_request, priority)
        _refuse_nonfinite(results, range(len(results)))
        return [np.asarray(result.outputs.data, dtype=np.float32) for result in results]

    async def _tokenized(self, inputs: Embeddings) -> list[dict[str, Any]]:
        renderer = self._renderer
        parameters = renderer.default_cmpl_tok_params.with_kwargs(
            truncate_prompt_tokens=inputs.truncate_prompt_tokens
        )
        parameters = tokenization(parameters, split=inputs.splits, span_unit=inputs.span_unit)
        rendered = await renderer.render_cmpl_async(inputs.prompts, parameters)
        for i, one in enumerate(rendered):
            if not one["prompt_token_ids"]:
                raise RequestError(f"input[{i}] has no tokens", "input")
        return [{"prompts": one, "params": inputs.params} for one in rendered]

    def _windows(self, inputs: Embeddings, requests: list[dict[str, Any]]) -> SimpleNamespace:
        """The requests that run, in the form of a server's request context; `cut` says how they were cut."""
        context = SimpleNamespace(engine_inputs=requests, pooling_params=inputs.params, cut=None)
        if inputs.splits:
            model = self._llm.model_config
            context.cut = Windows.of(
                context,
                model.max_model_len,
                inputs.overlap,
                self.limits.max_inputs,
                model.pooler_config.use_activation,
            )
        return context

    async def _run(
        self, requests: Sequence[dict[str, Any]], lora_request: Any, priority: int
    ) -> Sequence[Any]:
        async def result(request: dict[str, Any]) -> Any:
            outputs = self._llm.encode(
                request["prompts"],
                request["params"],
                self._next_id(),
                lora_request=lora_request,
                priority=priority,
            )
            async with aclosing(outputs):
                return [output async for output in outputs][-1]

        found: list[Any] = await all_of([result(request) for request in requests])
        return found


def _refuse_nonfinite(results: Sequence[Any], owners: Sequence[int]) -> None:
    for result, owner in zip(results, owners, strict=True):
        if not np.isfinite(np.asarray(result.outputs.data)).all():
            raise FloatingPointError(f"the embedding of input[{owner}] is not finite (NaN or infinity)")
