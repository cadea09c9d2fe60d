"""Inputs longer than the model: windows of its length, embedded apart and averaged by length.

An approximation: the tokens of a window have not seen those of the windows before it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from orthrus.pooling.finishing import finish_vectors


def cut(tokens: int, length: int, overlap: int) -> list[tuple[int, int]]:
    """Windows (start, end) of at most `length` tokens, each beginning `overlap` before the last one's end."""
    found = []
    start = 0
    while start + length < tokens:
        found.append((start, start + length))
        start += length - overlap
    return [*found, (start, tokens)]


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
    def of(cls, ctx: Any, length: int, overlap: int) -> Windows:
        """Replace the inputs of a vLLM request context (entrypoints/pooling/typing.py) by their windows."""
        params = ctx.pooling_params
        windows = cls([], [], params.dimensions, params.use_activation is not False)
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
        merged = []
        for i, ids in enumerate(self.prompts):
            parts = [result for result, owner in zip(results, self.owners, strict=True) if owner == i]
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
