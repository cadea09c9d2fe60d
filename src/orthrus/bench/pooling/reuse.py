"""Passages behind one instruction: what the reuse of cached prefixes saves, with equal vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from orthrus.bench.pooling.engine_process import Job, Round, embed_in_process
from orthrus.bench.pooling.equivalence import difference
from orthrus.bench.pooling.inputs import encoded, running
from orthrus.bench.pooling.report import publish

LIMIT = 2048
LONGEST_PASSAGE = 256


def measure(
    model: str, count: int, instruction_tokens: int, dtype: str, out: Path, console: Console
) -> dict[str, Any]:
    """Embed `count` passages behind an instruction with reuse off, and twice over with reuse on."""
    texts = encoded(model)
    instruction = running(texts, 0, instruction_tokens)
    # The second time round the shipped passages are other inputs: each starts at its second half.
    halves = [text[len(text) // 2 :] for text in texts]
    pool = [*texts, *halves] * (count // (2 * len(texts)) + 1)
    prompts = [instruction + text[:LONGEST_PASSAGE] for text in pool[:count]]
    engine = {"dtype": dtype, "max_model_len": LIMIT, "max_num_batched_tokens": LIMIT}
    console.print("reuse off")
    (plain,) = embed_in_process(Job(model, [prompts], {"prefix_sums_mib": 0}, engine))
    console.print("reuse on")
    first, again = embed_in_process(Job(model, [prompts, prompts], {}, engine))
    cases = {"off": plain, "on": first, "on, embedded again": again}
    results = {name: _facts(case, plain, dtype) for name, case in cases.items()}
    publish(
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
        {"model": model, "passages": count, "instruction_tokens": instruction_tokens, "rounds": results},
        out,
        console,
        (f"prompt tokens in all: {sum(map(len, prompts))}; the paper has no such measurement",),
    )
    return results


def _facts(case: Round, plain: Round, dtype: str) -> dict[str, Any]:
    compared = difference(dtype, "mean", LIMIT, case.vectors["mean"], plain.vectors["mean"])
    return {"tokens": case.tokens, "seconds": case.seconds, "min_cosine": compared.min_cosine}
