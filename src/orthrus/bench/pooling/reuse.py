"""Passages behind one instruction: what the reuse of cached prefixes saves, with equal vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from orthrus.bench.pooling.engine_process import Job, Round
from orthrus.bench.pooling.equivalence import distances
from orthrus.bench.pooling.inputs import encoded, running
from orthrus.bench.pooling.report import Session

LIMIT = 2048
LONGEST_PASSAGE = 256


def measure(
    model: str, count: int, instruction_tokens: int, dtype: str, seed: int, session: Session
) -> dict[str, Any]:
    """Embed `count` passages behind an instruction with reuse off, and twice over with reuse on."""
    texts = encoded(model)
    instruction = running(texts, 0, instruction_tokens)
    # The second time round the shipped passages are other inputs: each starts at its second half.
    halves = [text[len(text) // 2 :] for text in texts]
    pool = [*texts, *halves] * (count // (2 * len(texts)) + 1)
    order = np.random.default_rng(seed).permutation(count)
    prompts = [instruction + pool[i][:LONGEST_PASSAGE] for i in order]
    engine = {"dtype": dtype, "max_model_len": LIMIT, "max_num_batched_tokens": LIMIT}
    (plain,) = session.run("reuse off", Job(model, [prompts], {"prefix_sums_mib": 0}, engine))
    first, again = session.run("reuse on, twice", Job(model, [prompts, prompts], {}, engine))
    cases = {"off": plain, "on": first, "on, embedded again": again}
    results = {name: _facts(case, plain) for name, case in cases.items()}
    session.publish(
        "prefix-reuse",
        f"{count} passages behind an instruction of {instruction_tokens} tokens, {dtype}",
        ("prefix reuse", "tokens computed", "seconds", "embeddings/s", "min cosine to 'off'"),
        [
            (
                name,
                str(facts["tokens"]),
                f"{facts['seconds']:.2f}",
                f"{count / facts['seconds']:.1f}",
                f"{facts['min_cosine']:.8f}",
            )
            for name, facts in results.items()
        ],
        {
            "model": model,
            "passages": count,
            "instruction_tokens": instruction_tokens,
            "seed": seed,
            "rounds": results,
        },
        _raw(cases, plain, prompts),
        (f"prompt tokens in all: {sum(map(len, prompts))}; the paper has no such measurement",),
    )
    return results


def _facts(case: Round, plain: Round) -> dict[str, Any]:
    cosine, _ = distances(case.vectors["mean"], plain.vectors["mean"])
    return {"tokens": case.tokens, "seconds": case.seconds, "min_cosine": float(cosine.min())}


def _raw(cases: dict[str, Round], plain: Round, prompts: list[list[int]]) -> Iterator[dict[str, Any]]:
    for name, case in cases.items():
        cosine, distance = distances(case.vectors["mean"], plain.vectors["mean"])
        for i, prompt in enumerate(prompts):
            yield {
                "reuse": name,
                "passage": i,
                "tokens": len(prompt),
                "finished_after_s": float(case.latencies[i]),
                "cosine": float(cosine[i]),
                "relative_l2": float(distance[i]),
            }
