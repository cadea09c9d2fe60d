"""Standalone chunked embedding against atomic embedding (paper, appendix A.3, table 9)."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from orthrus.bench.pooling.engine_process import Job
from orthrus.bench.pooling.equivalence import LIMIT, LONGEST, SHORTEST
from orthrus.bench.pooling.inputs import encoded, of_mixed_length
from orthrus.bench.pooling.report import Session

PAPER = {"atomic": (20.4, 49.0), "chunked": (18.4, 54.4)}
"""Mean latency in ms and embeddings/s on OPT-1.3B."""
WHY = (
    "one input at a time, so throughput is 1 / mean latency; an input of at most one chunk is the same step "
    "in both cases, so only longer ones can differ"
)


def measure(
    model: str, count: int, chunk: int, repetitions: int, dtype: str, seed: int, session: Session
) -> dict[str, Any]:
    """Embed `count` inputs one after the other, in one pass each and in chunks; engines take turns."""
    prompts = of_mixed_length(encoded(model), count, SHORTEST, LONGEST, seed)
    lengths = np.array([len(prompt) for prompt in prompts])
    latencies: dict[str, list[np.ndarray[Any, np.dtype[np.float64]]]] = {"atomic": [], "chunked": []}
    for repetition in range(repetitions):
        # Turn and turn about, the other one first each time, so that a drift of the machine hits both.
        for name in sorted(latencies, reverse=repetition % 2 == 1):
            engine = {
                "dtype": dtype,
                "max_model_len": LIMIT,
                "max_num_batched_tokens": LIMIT if name == "atomic" else chunk,
                "enable_prefix_caching": False,
            }
            job = Job(model, [prompts], {}, engine, one_by_one=True)
            (found,) = session.run(f"{name}, repetition {repetition + 1} of {repetitions}", job)
            latencies[name].append(1000 * found.latencies)
    parts = {"all": lengths > 0, f"longer than {chunk} tokens": lengths > chunk}
    means = {
        part: {name: [float(run[chosen].mean()) for run in runs] for name, runs in latencies.items()}
        for part, chosen in parts.items()
        if chosen.any()
    }
    changes = {
        part: 100 * (median(by_name["chunked"]) / median(by_name["atomic"]) - 1)
        for part, by_name in means.items()
    }
    change = changes["all"]
    session.publish(
        "chunked",
        f"{count} inputs of {SHORTEST} to {LONGEST} tokens, one at a time, mean, {dtype}, chunk {chunk}",
        ("", "inputs", "mean latency", "spread", "embeddings/s", "paper (OPT-1.3B)"),
        [
            (
                f"{name}, {part}",
                str(int(parts[part].sum())),
                f"{median(runs):.1f} ms",
                f"{min(runs):.1f} to {max(runs):.1f} ms",
                f"{1000 / median(runs):.2f}",
                f"{PAPER[name][0]} ms, {PAPER[name][1]}/s" if part == "all" else "",
            )
            for part, by_name in means.items()
            for name, runs in by_name.items()
        ],
        {
            "model": model,
            "inputs": count,
            "tokens": int(lengths.sum()),
            "chunk": chunk,
            "seed": seed,
            "mean_latency_ms": means["all"],
            "mean_latency_ms_of_longer": means.get(f"longer than {chunk} tokens"),
            "latency_change_percent": changes,
        },
        (
            {
                "case": name,
                "repetition": r,
                "input": i,
                "tokens": int(lengths[i]),
                "latency_ms": float(latency),
            }
            for name, runs in latencies.items()
            for r, run in enumerate(runs)
            for i, latency in enumerate(run)
        ),
        (
            *(f"{part}: latency {value:+.1f} % by chunking" for part, value in changes.items()),
            f"throughput {100 * (100 / (100 + change) - 1):+.1f} %; "
            f"paper: latency -9.8 %, throughput +10.9 %",
            WHY,
        ),
    )
    return {"latencies": means["all"], "change": change}
