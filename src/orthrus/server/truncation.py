"""Which end of an input `truncate_prompt_tokens` keeps: the beginning on every route of embeddings.

vLLM loads the tokenizer for the runner (tokenizers/registry.py): a generating one cuts prompts at their
beginning, a pooling one cuts inputs at their end. Here one runner does both, so embeddings get the second.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from orthrus.engine import compat


def keeping_beginnings(renderer: Any) -> Any:
    """A twin of vLLM's renderer (renderers/base.py) that cuts inputs as a stock pooling server does.

    It shares everything but the tokenizer. Naming the side in the parameters of each request would not do:
    the tokenizer is then told not to cut, and what it appends to a text (an end token) would be lost.
    """
    twin = copy.copy(renderer)
    if renderer.tokenizer is None:
        return twin
    config = renderer.model_config
    # A copy, as the pool changes what it is given, and the loaded tokenizer is vLLM's cached one.
    tokenizer = copy.copy(compat.cached_tokenizer_from_config(config, truncation_side="right"))
    twin.tokenizer = compat.maybe_make_thread_pool(tokenizer, config.renderer_num_workers + 1)

    async def tokenize(prompt: Any, params: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(twin._executor, twin._tokenize_prompt, prompt, params)

    twin._tokenize_prompt_async = tokenize  # vLLM's own is bound to the renderer that it was made for
    return twin


def use_renderer(io_processor: Any, renderer: Any) -> None:
    """Let one of vLLM's pooling I/O processors (entrypoints/pooling) tokenise with `renderer`."""
    io_processor.renderer = renderer
    if hasattr(io_processor, "tokenizer"):  # those of the scoring routes hold it themselves
        io_processor.tokenizer = renderer.tokenizer
