"""`Engine`: generation and embeddings from Python, in the steps of one engine.

It runs vLLM's AsyncLLM (vllm/v1/engine/async_llm.py) in a background event loop, so that several threads and
event loops can hand it work at the same time; that is when both kinds share steps.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np

from orthrus import models
from orthrus.engine import api_inputs, plugin
from orthrus.engine.api_inputs import (
    ChatOptions,
    Embeddings,
    EmbedOptions,
    Generation,
    Message,
    Prompt,
    Texts,
)
from orthrus.engine.background import Background, all_of
from orthrus.engine.compat import (
    AsyncEngineArgs,
    AsyncLLMEngine,
    RequestOutputKind,
    SamplingParams,
    VLLMError,
    VLLMValidationError,
)
from orthrus.engine.config import KEY, OrthrusConfig
from orthrus.server.embeddings import limits_of
from orthrus.server.errors import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from orthrus.engine.compat import LoRARequest, RequestOutput

Sampling: TypeAlias = "SamplingParams | Sequence[SamplingParams] | None"

STOP_SECONDS = 30.0
"""How long the engine's processes may take to end by themselves before they are killed."""


class Engine:
    """One vLLM engine that generates and embeds, from one copy of the weights.

    `model` is a sample model's name (`smollm2`), a Hugging Face id or a folder. `policy` and `pooling` are
    those of `orthrus serve`; `arguments` are the other fields of `orthrus.engine.config.OrthrusConfig` and
    every argument of vLLM's AsyncEngineArgs. Raises TypeError for any other name, ValueError for a value
    that is not allowed.

    The engine runs in processes of its own, which are spawned: a script that starts one needs the usual
    `if __name__ == "__main__":`. Every method may be called from any thread; the `_async` ones and the
    streams from any event loop. Close it with `close()` or a `with` block; else it ends with the program.
    """

    def __init__(
        self, model: str, *, policy: str | None = None, pooling: str | None = None, **arguments: Any
    ) -> None:
        own = {name: arguments.pop(name) for name in _own_names() if name in arguments}
        if policy is not None:
            own["policy"] = policy
        settings = OrthrusConfig(**own, pooling=pooling).model_dump(mode="json", exclude_defaults=True)
        _check_names(arguments)
        additional = arguments.pop("additional_config", None) or {}
        if KEY in additional:
            raise ValueError(f"additional_config[{KEY!r}]: give these settings as arguments of Engine")
        # vLLM would fork the engine's process on a GPU; a program with threads must not be forked.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        plugin.register()
        engine_args = AsyncEngineArgs(
            **{"disable_log_stats": True, **arguments},
            model=models.resolve(model),
            additional_config={**additional, KEY: settings},
        )
        self._ids = itertools.count()
        self._background = Background("orthrus-engine")
        try:
            self._llm: AsyncLLMEngine = self._background.wait(_start(engine_args))
        except BaseException:
            self._background.close(lambda: None)
            raise
        self._limits = limits_of(self._llm.vllm_config, max_inputs=sys.maxsize)
        atexit.register(self.close)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the engine and its processes. What still runs raises EngineClosedError; safe to call twice."""
        atexit.unregister(self.close)
        self._background.close(lambda: self._llm.shutdown(timeout=STOP_SECONDS))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Sampling = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> list[RequestOutput]:
        """Complete prompts: texts, lists of token ids, or vLLM's prompt dictionaries.

        Returns vLLM's RequestOutput for each, in order. `sampling_params` is one for all, one for each, or
        None for the checkpoint's defaults. Raises TypeError or ValueError for bad input.
        """
        requests = api_inputs.completions(prompts)
        return self._background.wait(self._generate(requests, sampling_params, lora_request, priority))

    async def generate_async(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Sampling = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> list[RequestOutput]:
        """`generate` to await; cancelling it aborts the requests."""
        requests = api_inputs.completions(prompts)
        return await self._background.result(
            self._generate(requests, sampling_params, lora_request, priority)
        )

    def generate_stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """One completion while it grows: `async for` over RequestOutputs that hold what is new each time.

        Leaving the loop early aborts the request.
        """
        requests = api_inputs.completions(prompt)
        return self._stream(requests, sampling_params, lora_request, priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Sampling = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput]:
        """Answer one conversation or several: lists of `{"role": ..., "content": ...}`. See `generate`.

        `options` are `chat_template`, `tools` and `chat_template_kwargs`.
        """
        requests = api_inputs.conversations(messages, **options)
        return self._background.wait(self._generate(requests, sampling_params, lora_request, priority))

    async def chat_async(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Sampling = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput]:
        """`chat` to await; cancelling it aborts the requests."""
        requests = api_inputs.conversations(messages, **options)
        return await self._background.result(
            self._generate(requests, sampling_params, lora_request, priority)
        )

    def chat_stream(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Unpack[ChatOptions],
    ) -> AsyncIterator[RequestOutput]:
        """One answer while it grows; see `generate_stream`."""
        requests = api_inputs.conversations(messages, **options)
        return self._stream(requests, sampling_params, lora_request, priority)

    def embed(
        self,
        inputs: Texts,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Unpack[EmbedOptions],
    ) -> NDArray[np.float32]:
        """Embed a text, a list of token ids, or a list of either; returns float32 [inputs, dimensions].

        `options` are `pooling` (a head in place of the engine's), `normalize` (to length 1, or not; None: as
        the checkpoint says, else to length 1), `dimensions` (fewer, for Matryoshka models) and
        `truncate_prompt_tokens` (keep that many, the last ones; -1: the model's limit). Raises RequestError,
        a ValueError, for bad input, and FloatingPointError for a vector with a NaN or an infinity.
        """
        checked = api_inputs.embeddings(inputs, self._limits, **options)
        return self._background.wait(self._embed(checked, lora_request, priority))

    async def embed_async(
        self,
        inputs: Texts,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Unpack[EmbedOptions],
    ) -> NDArray[np.float32]:
        """`embed` to await; cancelling it aborts the requests."""
        checked = api_inputs.embeddings(inputs, self._limits, **options)
        return await self._background.result(self._embed(checked, lora_request, priority))

    async def _generate(
        self, requests: list[Generation], given: Sampling, lora_request: Any, priority: int
    ) -> list[RequestOutput]:
        async def last(request: Generation, params: SamplingParams) -> RequestOutput:
            outputs = self._outputs(request, params, RequestOutputKind.FINAL_ONLY, lora_request, priority)
            async with aclosing(outputs):
                return [output async for output in outputs][-1]

        params = self._sampling(given, len(requests))
        return await all_of([last(request, one) for request, one in zip(requests, params, strict=True)])

    def _stream(
        self, requests: list[Generation], given: Sampling, lora_request: Any, priority: int
    ) -> AsyncIterator[RequestOutput]:
        if len(requests) != 1:
            raise ValueError(f"a stream takes one input, not {len(requests)}")
        (params,) = self._sampling(given, 1)
        outputs = self._outputs(requests[0], params, RequestOutputKind.DELTA, lora_request, priority)
        return self._background.iterate(outputs)

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
        with _plain_errors():
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

    async def _embed(self, inputs: Embeddings, lora_request: Any, priority: int) -> NDArray[np.float32]:
        async def vector(rendered: Any) -> NDArray[np.float32]:
            outputs = self._llm.encode(
                rendered, inputs.params, self._next_id(), lora_request=lora_request, priority=priority
            )
            async with aclosing(outputs):
                output = [output async for output in outputs][-1]
            return np.asarray(output.outputs.data, dtype=np.float32)

        renderer = self._llm.renderer
        tokenization = renderer.default_cmpl_tok_params.with_kwargs(
            truncate_prompt_tokens=inputs.truncate_prompt_tokens
        )
        with _plain_errors():
            rendered = await renderer.render_cmpl_async(inputs.prompts, tokenization)
            for i, one in enumerate(rendered):
                if not one["prompt_token_ids"]:
                    raise RequestError(f"input[{i}] has no tokens", "input")
            vectors = np.stack(await all_of([vector(one) for one in rendered]))
        broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist()
        if broken:
            raise FloatingPointError(f"the embedding of input[{broken[0]}] is not finite (NaN or infinity)")
        return vectors

    def _next_id(self) -> str:
        return f"orthrus-{next(self._ids)}"


async def _start(engine_args: AsyncEngineArgs) -> AsyncLLMEngine:
    return AsyncLLMEngine.from_engine_args(engine_args)


def _own_names() -> set[str]:
    return OrthrusConfig.model_fields.keys() - {"checkpoint"}  # which the engine finds by itself


def _check_names(arguments: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(AsyncEngineArgs)]
    for name in arguments:
        if name not in known:
            near = get_close_matches(name, [*known, *_own_names()], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"neither Orthrus nor vLLM has an engine argument {name!r}{hint}")


@contextmanager
def _plain_errors() -> Iterator[None]:
    """vLLM's refusals of a request as ValueError, without the wrapper (EngineGenerateError) around some."""
    try:
        yield
    except VLLMValidationError as error:
        raise ValueError(str(error)) from error
    except VLLMError as error:
        if isinstance(error.__cause__, ValueError | TypeError):
            raise error.__cause__ from None
        raise
