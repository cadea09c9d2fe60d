"""Standalone chunked embedding against atomic embedding (paper, appendix A.3, table 9)."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from orthrus.bench.pooling.engine_process import Job, embed_in_process
from orthrus.bench.pooling.equivalence import LIMIT, LONGEST, SHORTEST
from orthrus.bench.pooling.inputs import encoded, of_mixed_length
from orthrus.bench.pooling.report import publish

PAPER = {"atomic": (20.4, 49.0), "chunked": (18.4, 54.4)}
"""Mean latency in ms and embeddings/s on OPT-1.3B."""


def measure(
    model: str, count: int, chunk: int, repetitions: int, dtype: str, seed: int, out: Path, console: Console
) -> dict[str, Any]:
    """Embed `count` inputs one after the other, in one pass each and in chunks; engines take turns."""
    prompts = of_mixed_length(encoded(model), count, SHORTEST, LONGEST, seed)
    latencies: dict[str, list[float]] = {"atomic": [], "chunked": []}
    for repetition in range(repetitions):
        for name in latencies:
            console.print(f"{name}, repetition {repetition + 1} of {repetitions}")
            engine = {
                "dtype": dtype,
                "max_model_len": LIMIT,
                "max_num_batched_tokens": LIMIT if name == "atomic" else chunk,
                "enable_prefix_caching": False,
            }
            (found,) = embed_in_process(Job(model, [prompts], {}, engine, one_by_one=True))
            latencies[name].append(1000 * float(found.latencies.mean()))
    middle = {name: median(values) for name, values in latencies.items()}
    change = 100 * (middle["chunked"] / middle["atomic"] - 1)
    publish(
        "chunked",
        f"{count} inputs of {SHORTEST} to {LONGEST} tokens, one at a time, mean, {dtype}, chunk {chunk}",
        ("", "mean latency", "embeddings/s", "spread", "paper (OPT-1.3B)"),
        [
            (
                name,
                f"{value:.1f} ms",
                f"{1000 / value:.2f}",
                f"{min(latencies[name]):.1f} to {max(latencies[name]):.1f} ms",
                f"{PAPER[name][0]} ms, {PAPER[name][1]}/s",
            )
            for name, value in middle.items()
        ],
        {
            "model": model,
            "inputs": count,
            "tokens": sum(map(len, prompts)),
            "chunk": chunk,
            "mean_latency_ms": latencies,
            "latency_change_percent": change,
        },
        out,
        console,
        (
            f"chunking: latency {change:+.1f} %, throughput {100 * (100 / (100 + change) - 1):+.1f} %; "
            f"paper: -9.8 %, +10.9 %",
        ),
    )
    return {"latencies": latencies, "change": change}
