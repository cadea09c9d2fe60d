"""Inputs longer than the model: windows of its length, embedded apart and averaged by length.

An approximation: the tokens of a window have not seen those of the windows before it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from orthrus.engine.compat import VLLMValidationError
from orthrus.pooling.finishing import finish_vectors


def cut(tokens: int, length: int, overlap: int) -> list[tuple[int, int]]:
    """Windows (start, end) of at most `length` tokens, each beginning `overlap` before the last one's end."""
    return [(start, min(start + length, tokens)) for start in _starts(tokens, length, overlap)]


def count(tokens: int, length: int, overlap: int) -> int:
    """How many windows `cut` gives, without making them."""
    return len(_starts(tokens, length, overlap))


def _starts(tokens: int, length: int, overlap: int) -> range:
    return range(0, max(tokens - overlap, 1), length - overlap)


@dataclass(frozen=True)
class Windows:
    """How the inputs of a request were cut: the input that each window is of, and each input's tokens.

    `dimensions` and `normalize` are applied to the average, not to the windows.
    """

    owners: list[int]
    prompts: list[list[int]]
    dimensions: int | None
    normalize: bool

    @classmethod
    def of(cls, ctx: Any, length: int, overlap: int, most: int, normalize: bool | None) -> Windows:
        """Replace the inputs of a vLLM request context (entrypoints/pooling/typing.py) by their windows.

        `normalize` is the model's default (None: yes) for a request that does not say. Raises
        VLLMValidationError for more than `most` windows, before any is made.
        """
        lengths = [len(engine_input["prompts"]["prompt_token_ids"]) for engine_input in ctx.engine_inputs]
        wanted = sum(count(tokens, length, overlap) for tokens in lengths)
        if wanted > most:
            raise VLLMValidationError(
                f"the inputs would be split into {wanted} windows; at most {most} are allowed "
                f"(--max-embedding-inputs)",
                parameter="input",
            )
        params = ctx.pooling_params
        wanted_normalize = normalize if params.use_activation is None else params.use_activation
        windows = cls([], [], params.dimensions, wanted_normalize is not False)
        params.dimensions, params.use_activation = None, False
        inputs = []
        for i, engine_input in enumerate(ctx.engine_inputs):
            prompt = engine_input["prompts"]
            ids = prompt["prompt_token_ids"]
            windows.prompts.append(ids)
            for start, end in cut(len(ids), length, overlap):
                kept = {key: value for key, value in prompt.items() if key != "prompt"}
                inputs.append({**engine_input, "prompts": {**kept, "prompt_token_ids": ids[start:end]}})
                windows.owners.append(i)
        ctx.engine_inputs = inputs
        return windows

    def merge(self, results: Sequence[Any]) -> list[Any]:
        """One result for each input: the average of its windows' vectors, weighted by their tokens."""
        parts_of: list[list[Any]] = [[] for _ in self.prompts]
        for result, owner in zip(results, self.owners, strict=True):
            parts_of[owner].append(result)
        merged = []
        for ids, parts in zip(self.prompts, parts_of, strict=True):
            weights = torch.tensor([float(len(part.prompt_token_ids)) for part in parts])
            vectors = torch.stack([part.outputs.data for part in parts])
            average = (vectors * weights[:, None]).sum(0) / weights.sum()
            finished = finish_vectors(average[None], (), [self.dimensions], [self.normalize])
            result = copy.copy(parts[0])
            result.outputs = copy.copy(parts[0].outputs)
            result.outputs.data = finished.vectors[0]
            result.prompt_token_ids = ids
            merged.append(result)
        return merged
