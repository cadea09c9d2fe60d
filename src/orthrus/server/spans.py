"""Spans of an embeddings request: from characters to tokens, and from one answer to one vector a span."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from orthrus.engine.compat import VLLMValidationError
from orthrus.engine.embedding import SPANS_KEY
from orthrus.pooling.errors import PoolingConfigError
from orthrus.pooling.spans import check_spans

Offsets = Sequence[tuple[int, int]]


def token_span(start: int, end: int, offsets: Offsets) -> tuple[int, int]:
    """The tokens that touch the characters from `start` to `end` (exclusive): positions, end exclusive.

    `offsets` are the characters of each token; special tokens, which cover none, are passed over. Raises
    PoolingConfigError where no token touches them, as in what the tokenizer leaves out.
    """
    touched = [i for i, (first, beyond) in enumerate(offsets) if first < end and beyond > start]
    if not touched:
        raise PoolingConfigError(f"no token covers the characters {start} to {end} of a span")
    return touched[0], touched[-1] + 1


def attach(
    engine_inputs: Sequence[Any], spans: list[list[list[int]]], by_characters: bool, most: int
) -> None:
    """Give each input its own parameters with its spans, in tokens. Raises VLLMValidationError."""
    for i, (engine_input, wanted) in enumerate(zip(engine_inputs, spans, strict=True)):
        prompt = engine_input["prompts"]
        try:
            pairs: Sequence[Any] = wanted
            if by_characters:
                offsets = prompt.get("prompt_token_offsets")
                if offsets is None:
                    raise PoolingConfigError("this model's tokenizer gives no character offsets")
                pairs = [token_span(start, end, offsets) for start, end in wanted]
            checked = check_spans(pairs, len(prompt["prompt_token_ids"]), most)
        except PoolingConfigError as error:
            raise VLLMValidationError(f"input[{i}]: {error}", parameter=SPANS_KEY) from error
        params = engine_input["params"].clone()
        params.extra_kwargs = {**(params.extra_kwargs or {}), SPANS_KEY: [list(pair) for pair in checked]}
        engine_input["params"] = params


def one_result_each(results: Sequence[Any]) -> list[Any]:
    """A result with one vector for each span, inputs in order; the tokens count with an input's first."""
    spread = []
    for result in results:
        for i, vector in enumerate(result.outputs.data):
            part = copy.copy(result)
            part.outputs = copy.copy(result.outputs)
            part.outputs.data = vector
            if i:
                part.prompt_token_ids = []
            spread.append(part)
    return spread
