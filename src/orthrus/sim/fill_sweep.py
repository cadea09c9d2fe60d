"""How the fill simulation's figures depend on its assumptions: one of them changed at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from orthrus.sim.fill import FillResult, simulate
from orthrus.sim.scenario import Embedding, FillScenario

SWEEP: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
    ("fixed cost of a step", tuple({"step_s": cost * 1e-6} for cost in (0, 100, 1000, 5000))),
    (
        "embedding length",
        tuple({"embed_min_tokens": n, "embed_max_tokens": n} for n in (64, 128, 192, 240, 256)),
    ),
    ("embedding length, uniform", ({"embed_min_tokens": 16},)),
    ("output tokens", tuple({"output_tokens": n} for n in (5, 10, 21, 42))),
    ("prompt tokens", tuple({"prompt_tokens": n} for n in (8, 15, 22))),
    ("generation clients", tuple({"generation_clients": n} for n in (0, 20, 40, 80))),
    ("embedding clients", tuple({"embedding_clients": n} for n in (1, 5, 20))),
    ("chunk size", tuple({"chunk": n} for n in (16, 32, 64, 128))),
    ("seed", tuple({"seed": n} for n in (0, 1, 2, 3))),
)
"""Title, and the values that replace the scenario's own."""


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One changed assumption and what came of it, for each way of embedding."""

    title: str
    changed: dict[str, Any]
    results: tuple[FillResult, ...]


def sweep(base: FillScenario) -> Iterator[SweepRow]:
    """Run every variation of `base`, lazily, so that progress can be shown."""
    for title, variations in SWEEP:
        for changed in variations:
            scenario = replace(base, **changed)
            yield SweepRow(title, changed, tuple(simulate(scenario, embedding) for embedding in Embedding))
