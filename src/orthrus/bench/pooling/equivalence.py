"""Chunked against one-pass embeddings, by head, chunk size and dtype (paper, appendix A.1, table 7)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from orthrus.bench.pooling.engine_process import HEADS, Job, embed_in_process
from orthrus.bench.pooling.inputs import encoded, of_mixed_length
from orthrus.bench.pooling.report import publish

SHORTEST, LONGEST = 5, 2000
LIMIT = 2048
PAPER = "paper: min cosine > 0.9999, mean and p99 relative L2 < 1 % (all nine configurations)"
CONTROL = "control: one pass of the model, pooled in the smallest chunks: what pooling alone changes"
BAR_COSINE, BAR_P99 = 0.99999, 1e-3


@dataclass(frozen=True)
class Difference:
    """How far vectors lie from one-pass ones; L2 distances relative to the one-pass vector's norm.

    `chunk` None is the control: the hidden states of one pass, pooled in pieces of the smallest chunk.
    """

    dtype: str
    head: str
    chunk: int | None
    min_cosine: float
    mean_relative_l2: float
    p99_relative_l2: float

    @property
    def holds(self) -> bool:
        """Whether our bar is met: minimum cosine above 0.99999 and p99 relative L2 below 0.1 %."""
        return self.min_cosine > BAR_COSINE and self.p99_relative_l2 < BAR_P99


def difference(
    dtype: str, head: str, chunk: int | None, got: NDArray[np.float32], wanted: NDArray[np.float32]
) -> Difference:
    """Compare vectors [n, d] of the same inputs, in float64."""
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    norms = np.linalg.norm(b, axis=1)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / norms
    distance = np.linalg.norm(a - b, axis=1) / norms
    return Difference(
        dtype, head, chunk, float(cosine.min()), float(distance.mean()), float(np.percentile(distance, 99))
    )


def measure(
    model: str, count: int, chunks: list[int], dtypes: list[str], seed: int, out: Path, console: Console
) -> list[Difference]:
    """Embed `count` inputs of 5 to 2 000 tokens in one pass each, and in steps of each chunk size."""
    prompts = of_mixed_length(encoded(model), count, SHORTEST, LONGEST, seed)
    found: list[Difference] = []
    for dtype in dtypes:
        vectors = {}
        for chunk in (LIMIT, None, *chunks):
            alone = chunk in (LIMIT, None)
            console.print(f"{dtype}: {_step_name(chunk)}")
            job = Job(
                model,
                [prompts],
                {"policy": "fcfs"},
                {
                    "dtype": dtype,
                    "max_model_len": LIMIT,
                    "max_num_batched_tokens": chunk or LIMIT,
                    "enable_prefix_caching": False,
                },
                one_by_one=alone,
                every_head=True,
                pool_in=None if chunk else min(chunks),
            )
            vectors[chunk] = embed_in_process(job)[0].vectors
        found += [
            difference(dtype, head, chunk, vectors[chunk][head], vectors[LIMIT][head])
            for head in HEADS
            for chunk in (None, *chunks)
        ]
    tokens = sum(map(len, prompts))
    publish(
        "pooling",
        f"Chunked against one-pass embeddings: {count} inputs, {tokens} tokens",
        ("head", "dtype", "chunk", "min cosine", "mean rel. L2", "p99 rel. L2", "bar"),
        [
            (
                item.head,
                item.dtype,
                str(item.chunk or "control"),
                f"{item.min_cosine:.8f}",
                f"{100 * item.mean_relative_l2:.5f} %",
                f"{100 * item.p99_relative_l2:.5f} %",
                "met" if item.holds else "missed",
            )
            for item in found
        ],
        {"model": model, "inputs": count, "tokens": tokens, "seed": seed, "rows": [asdict(i) for i in found]},
        out,
        console,
        (PAPER, CONTROL, f"our bar: min cosine > {BAR_COSINE}, p99 relative L2 < {100 * BAR_P99} %"),
    )
    return found


def _step_name(chunk: int | None) -> str:
    if chunk is None:
        return "one pass each, pooled in pieces"
    return "one pass each" if chunk == LIMIT else f"steps of {chunk} tokens"
