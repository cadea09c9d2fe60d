"""`Engine`: generation and embeddings from Python, in the steps of one engine.

It runs vLLM's AsyncLLM (vllm/v1/engine/async_llm.py) in a background event loop, so that several threads and
event loops can hand it work at the same time; that is when both kinds share steps.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Unpack

from orthrus import models
from orthrus.engine import api_inputs, plugin
from orthrus.engine.api_embedding import Embedder
from orthrus.engine.api_generation import Generator, Sampling
from orthrus.engine.api_inputs import (
    ChatOptions,
    Embeddings,
    EmbedOptions,
    Message,
    Prompt,
    Texts,
    TokenOptions,
)
from orthrus.engine.background import Background
from orthrus.engine.compat import (
    AsyncEngineArgs,
    AsyncLLMEngine,
    SamplingParams,
)
from orthrus.engine.config import KEY, OrthrusConfig
from orthrus.policy.options import PolicyOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from orthrus.engine.compat import LoRARequest, RequestOutput

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
        self._generator = Generator(self._llm, self._next_id)
        self._embedder = Embedder(self._llm, self._next_id, max_inputs=sys.maxsize)
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
        return self._background.wait(
            self._generator.complete(requests, sampling_params, lora_request, priority)
        )

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
            self._generator.complete(requests, sampling_params, lora_request, priority)
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
        outputs = self._generator.stream(requests, sampling_params, lora_request, priority)
        return self._background.iterate(outputs)

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
        return self._background.wait(
            self._generator.complete(requests, sampling_params, lora_request, priority)
        )

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
            self._generator.complete(requests, sampling_params, lora_request, priority)
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
        outputs = self._generator.stream(requests, sampling_params, lora_request, priority)
        return self._background.iterate(outputs)

    def embed(
        self,
        inputs: Texts,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Unpack[EmbedOptions],
    ) -> NDArray[np.float32]:
        """Embed a text, a list of token ids, or a list of either; returns float32 [inputs, dimensions].

        `options` have the names and the meaning of the server's request fields (docs/pooling.md): `pooling`
        (a head in place of the engine's), `normalize` (to length 1, or not; None: as the checkpoint says,
        else to length 1), `dimensions` (fewer, for Matryoshka models), `truncate_prompt_tokens` (keep the
        first so many; -1: the model's limit), `long_input="split"` with `overlap` (tokens), and `spans` with
        `span_unit`: pairs [start, end) for one input, or a list of pairs for each; then the result is
        [all spans, dimensions], the first input's spans first. Raises RequestError, a ValueError, for bad
        input, and FloatingPointError for a vector with a NaN or an infinity.
        """
        checked = api_inputs.embeddings(inputs, self._embedder.limits, options)
        return self._background.wait(self._embedder.vectors(checked, lora_request, priority))

    async def embed_async(
        self,
        inputs: Texts,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Unpack[EmbedOptions],
    ) -> NDArray[np.float32]:
        """`embed` to await; cancelling it aborts the requests."""
        checked = api_inputs.embeddings(inputs, self._embedder.limits, options)
        return await self._background.result(self._embedder.vectors(checked, lora_request, priority))

    def embed_tokens(
        self,
        inputs: Texts,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Unpack[TokenOptions],
    ) -> list[NDArray[np.float32]]:
        """One vector for each token, for late interaction: float32 [tokens, dimensions] for each input.

        Needs an engine with `pooling_buffer_tokens`. `options` are `normalize`, `dimensions` and
        `truncate_prompt_tokens`, as of `embed`, which also says what is raised.
        """
        checked = self._token_level(inputs, options)
        return self._background.wait(self._embedder.token_vectors(checked, lora_request, priority))

    async def embed_tokens_async(
        self,
        inputs: Texts,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        **options: Unpack[TokenOptions],
    ) -> list[NDArray[np.float32]]:
        """`embed_tokens` to await; cancelling it aborts the requests."""
        checked = self._token_level(inputs, options)
        return await self._background.result(self._embedder.token_vectors(checked, lora_request, priority))

    def _token_level(self, inputs: Texts, options: TokenOptions) -> Embeddings:
        self._embedder.check_token_level()
        return api_inputs.token_embeddings(inputs, self._embedder.limits, options)

    def _next_id(self) -> str:
        return f"orthrus-{next(self._ids)}"


async def _start(engine_args: AsyncEngineArgs) -> AsyncLLMEngine:
    return AsyncLLMEngine.from_engine_args(engine_args)


def _own_names() -> set[str]:
    return OrthrusConfig.model_fields.keys() - {"checkpoint"}  # which the engine finds by itself


def _check_names(arguments: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(AsyncEngineArgs)]
    for name in arguments:
        if name in PolicyOptions.__dataclass_fields__:
            raise TypeError(f"{name!r} is an option of the policy: policy_options={{{name!r}: ...}}")
        if name not in known:
            near = get_close_matches(name, [*known, *_own_names()], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"neither Orthrus nor vLLM has an engine argument {name!r}{hint}")
