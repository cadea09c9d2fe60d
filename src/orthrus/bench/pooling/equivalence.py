"""Chunked against one-pass embeddings, by head, chunk size and dtype (paper, appendix A.1, table 7).

Every vector is also compared with the float32 engine's one-pass vector: a bfloat16 model lies off that
by its own rounding, chunked or not, and the question is whether chunks add to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthrus.bench.pooling.engine_process import Job
from orthrus.bench.pooling.inputs import encoded, of_mixed_length
from orthrus.bench.pooling.instruments import HEADS, PIECES
from orthrus.bench.pooling.report import Session

SHORTEST, LONGEST = 5, 2000
LIMIT = 2048
REFERENCE = "float32"
PAPER = "paper: min cosine > 0.9999, mean and p99 relative L2 < 1 % in all nine cases"
CONTROL = "control: one pass of the model, pooled in the smallest chunks: what pooling alone changes"
TRUTH = "to float32: distance to the float32 engine's one-pass vector, which is bfloat16's own rounding"
BAR_COSINE, BAR_P99 = 0.99999, 1e-3

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Difference:
    """How far vectors lie from one-pass ones; L2 distances relative to the one-pass vector's norm.

    `chunk` is a size in tokens, "one pass" or "control" (the hidden states of one pass, pooled in pieces of
    the smallest chunk). The last three are against the one-pass vectors of the float32 engine.
    """

    dtype: str
    head: str
    chunk: int | str
    min_cosine: float
    mean_relative_l2: float
    p99_relative_l2: float
    float32_min_cosine: float
    float32_mean_relative_l2: float
    float32_p99_relative_l2: float

    @property
    def holds(self) -> bool:
        """Whether our bar is met: minimum cosine above 0.99999 and p99 relative L2 below 0.1 %."""
        return self.min_cosine > BAR_COSINE and self.p99_relative_l2 < BAR_P99


def distances(got: Vectors, wanted: Vectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cosine [n] and relative L2 distance [n] of vectors [n, d] of the same inputs, in float64."""
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    norms = np.linalg.norm(b, axis=1)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / norms
    return cosine, np.linalg.norm(a - b, axis=1) / norms


def difference(
    dtype: str, head: str, chunk: int | str, got: Vectors, one_pass: Vectors, truth: Vectors
) -> Difference:
    """Compare vectors [n, d] with the one-pass ones of the same dtype and with float32's."""
    found = []
    for wanted in (one_pass, truth):
        cosine, distance = distances(got, wanted)
        found += [float(cosine.min()), float(distance.mean()), float(np.percentile(distance, 99))]
    return Difference(dtype, head, chunk, *found)


def measure(
    model: str,
    count: int,
    chunks: list[int],
    dtypes: list[str],
    seed: int,
    session: Session,
    *,
    batch_invariant: bool = False,
) -> list[Difference]:
    """Embed `count` inputs of 5 to 2 000 tokens in one pass each, and in steps of each chunk size."""
    prompts = of_mixed_length(encoded(model), count, SHORTEST, LONGEST, seed)
    vectors: dict[tuple[str, str, int | str], Vectors] = {}
    for dtype in dict.fromkeys([REFERENCE, *dtypes]):
        for chunk in (LIMIT, *(chunks if dtype in dtypes else ())):
            whole = chunk == LIMIT
            engine = {
                "dtype": dtype,
                "max_model_len": LIMIT,
                "max_num_batched_tokens": chunk,
                "enable_prefix_caching": False,
            }
            job = Job(
                model,
                [prompts],
                {"policy": "fcfs", "batch_invariant": batch_invariant},
                engine,
                one_by_one=whole,
                every_head=True,
                pool_in=min(chunks) if whole else None,
            )
            (done,) = session.run(f"{dtype}, {'one pass each' if whole else f'steps of {chunk}'}", job)
            for head in HEADS:
                vectors[dtype, head, "one pass" if whole else chunk] = done.vectors[head]
                if whole:
                    vectors[dtype, head, "control"] = done.vectors[PIECES + head]
    shown: tuple[int | str, ...] = ("one pass", "control", *chunks)
    found = [
        difference(
            dtype,
            head,
            chunk,
            vectors[dtype, head, chunk],
            vectors[dtype, head, "one pass"],
            vectors[REFERENCE, head, "one pass"],
        )
        for dtype in dtypes
        for head in HEADS
        for chunk in shown
    ]
    _publish(model, prompts, seed, found, list(_raw(vectors, prompts, dtypes)), session)
    return found


def _raw(
    vectors: dict[Any, Vectors], prompts: list[list[int]], dtypes: list[str]
) -> Iterator[dict[str, Any]]:
    for (dtype, head, chunk), got in vectors.items():
        if dtype not in dtypes:
            continue
        cosine, distance = distances(got, vectors[dtype, head, "one pass"])
        _, from_truth = distances(got, vectors[REFERENCE, head, "one pass"])
        for i, prompt in enumerate(prompts):
            yield {
                "dtype": dtype,
                "head": head,
                "chunk": chunk,
                "input": i,
                "tokens": len(prompt),
                "cosine": float(cosine[i]),
                "relative_l2": float(distance[i]),
                "float32_relative_l2": float(from_truth[i]),
            }


def _publish(
    model: str,
    prompts: list[list[int]],
    seed: int,
    found: list[Difference],
    raw: list[dict[str, Any]],
    session: Session,
) -> None:
    tokens = sum(map(len, prompts))
    columns = ("head", "dtype", "chunk", "min cosine", "mean rel. L2", "p99 rel. L2")
    session.publish(
        "pooling",
        f"Chunked against one-pass embeddings: {len(prompts)} inputs, {tokens} tokens",
        (*columns, "to float32: min cosine", "mean", "p99", "bar"),
        [
            (
                item.head,
                item.dtype,
                str(item.chunk),
                f"{item.min_cosine:.8f}",
                f"{100 * item.mean_relative_l2:.5f} %",
                f"{100 * item.p99_relative_l2:.5f} %",
                f"{item.float32_min_cosine:.8f}",
                f"{100 * item.float32_mean_relative_l2:.5f} %",
                f"{100 * item.float32_p99_relative_l2:.5f} %",
                "met" if item.holds else "missed",
            )
            for item in found
        ],
        {
            "model": model,
            "inputs": len(prompts),
            "tokens": tokens,
            "seed": seed,
            "rows": [asdict(item) for item in found],
        },
        raw,
        (
            PAPER,
            CONTROL,
            TRUTH,
            *_added_by_chunks(found),
            *_first_moved(raw),
            f"our bar: min cosine > {BAR_COSINE}, p99 relative L2 < {100 * BAR_P99} %",
        ),
    )


def _added_by_chunks(found: list[Difference]) -> Iterator[str]:
    """For each dtype but float32: how far it is from float32 in one pass, and in the worst of the chunks."""
    for dtype in dict.fromkeys(item.dtype for item in found if item.dtype != REFERENCE):
        for head in HEADS:
            rows = {item.chunk: item for item in found if (item.dtype, item.head) == (dtype, head)}
            alone = rows["one pass"].float32_mean_relative_l2
            worst = max(
                item.float32_mean_relative_l2 for chunk, item in rows.items() if isinstance(chunk, int)
            )
            yield (
                f"{dtype}, {head}: mean distance to float32 {100 * alone:.4f} % in one pass, "
                f"at most {100 * worst:.4f} % in chunks ({worst / alone:.3f} times)"
            )


def _first_moved(raw: list[dict[str, Any]]) -> Iterator[str]:
    """From which length on the model itself gives other bits in chunks; `last` pools without arithmetic."""
    for dtype in dict.fromkeys(record["dtype"] for record in raw):
        mine = [r for r in raw if (r["dtype"], r["head"]) == (dtype, "last") and isinstance(r["chunk"], int)]
        moved = [record["tokens"] for record in mine if record["relative_l2"]]
        shortest = min(moved, default=None)
        same = {record["input"] for record in mine if shortest is None or record["tokens"] < shortest}
        until = "all of them" if shortest is None else f"all below {shortest} tokens"
        yield f"{dtype}: the last hidden state is the same to the bit for {len(same)} inputs, {until}"
