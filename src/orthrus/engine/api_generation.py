"""The generation calls of `Engine`: rendered, run on the engine, complete or while they grow."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

from orthrus.engine import api_inputs
from orthrus.engine.api_errors import plain_errors
from orthrus.engine.background import all_of
from orthrus.engine.compat import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from orthrus.engine.api_inputs import Generation
    from orthrus.engine.compat import AsyncLLMEngine, RequestOutput

Sampling: TypeAlias = "SamplingParams | Sequence[SamplingParams] | None"


class Generator:
    """Generates for checked inputs on a running engine. `next_id` names each request."""

    def __init__(self, llm: AsyncLLMEngine, next_id: Callable[[], str]) -> None:
        self._llm = llm
        self._next_id = next_id

    async def complete(
        self, requests: list[Generation], given: Sampling, lora_request: Any, priority: int
    ) -> list[RequestOutput]:
        """The finished output of each request, in order. Raises TypeError or ValueError for bad input."""

        async def last(request: Generation, params: SamplingParams) -> RequestOutput:
            outputs = self._outputs(request, params, RequestOutputKind.FINAL_ONLY, lora_request, priority)
            async with aclosing(outputs):
                return [output async for output in outputs][-1]

        params = self._sampling(given, len(requests))
        return await all_of([last(request, one) for request, one in zip(requests, params, strict=True)])

    def stream(
        self, requests: list[Generation], given: Sampling, lora_request: Any, priority: int
    ) -> AsyncGenerator[RequestOutput, None]:
        """What is new each time, of the one request. Raises ValueError for several."""
        if len(requests) != 1:
            raise ValueError(f"a stream takes one input, not {len(requests)}")
        (params,) = self._sampling(given, 1)
        return self._outputs(requests[0], params, RequestOutputKind.DELTA, lora_request, priority)

    def _sampling(self, given: Sampling, count: int) -> list[SamplingParams]:
        return api_inputs.sampling(given, count, self._llm.model_config.get_diff_sampling_param())

    async def _outputs(
        self,
        request: Generation,
        params: SamplingParams,
        kind: RequestOutputKind,
        lora_request: Any,
        priority: int,
    ) -> AsyncGenerator[RequestOutput, None]:
        params = params.clone()
        params.output_kind = kind
        renderer = self._llm.renderer
        with plain_errors():
            if request.messages is None:
                (rendered,) = await renderer.render_cmpl_async([request.prompt])
            else:
                _, (rendered,) = await renderer.render_chat_async([request.messages], request.chat)
            outputs = self._llm.generate(
                rendered, params, self._next_id(), lora_request=lora_request, priority=priority
            )
            async with aclosing(outputs):
                async for output in outputs:
                    yield output
