"""The engines' own counts over a window, from /metrics: steps, tokens in them, preemptions.

Orthrus counts what it scheduled; vLLM counts a prompt's tokens in the step that ends its prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import httpx

NAMES = {
    "steps": ("orthrus:steps_total", "vllm:iteration_tokens_total_count"),
    "tokens": ("orthrus:scheduled_tokens_total", "vllm:iteration_tokens_total_sum"),
    "preemptions": ("vllm:num_preemptions_total",),
}
"""Metric names of each count; the first that a server has is taken."""


@dataclass(frozen=True)
class Counters:
    """Sums over all servers so far. `preemptions` is None where a server does not count them."""

    steps: float = 0.0
    tokens: float = 0.0
    preemptions: float | None = None

    def since(self, earlier: Counters) -> Counters:
        """What was counted after `earlier`."""
        preemptions = None
        if self.preemptions is not None and earlier.preemptions is not None:
            preemptions = self.preemptions - earlier.preemptions
        return Counters(self.steps - earlier.steps, self.tokens - earlier.tokens, preemptions)


def parse(text: str) -> Counters | None:
    """The counters in a Prometheus text, summed over labels; None where steps are not counted."""
    found: dict[str, float] = {}
    for field, names in NAMES.items():
        for name in names:
            values = [
                float(line.rsplit(" ", 1)[1])
                for line in text.splitlines()
                if line.startswith((name + "{", name + " "))
            ]
            if values and field not in found:
                found[field] = sum(values)
    return Counters(**found) if "steps" in found else None


def read(urls: Sequence[str]) -> Counters | None:
    """The counters of all servers now; None when one of them does not offer them."""
    total: list[Counters] = []
    for url in dict.fromkeys(urls):
        try:
            answer = httpx.get(f"{url}/metrics", timeout=10, trust_env=False)
        except httpx.TransportError:
            return None
        found = parse(answer.text) if answer.status_code == httpx.codes.OK else None
        if found is None:
            return None
        total.append(found)
    preemptions = [found.preemptions for found in total if found.preemptions is not None]
    return Counters(
        steps=sum(found.steps for found in total),
        tokens=sum(found.tokens for found in total),
        preemptions=sum(preemptions) if len(preemptions) == len(total) else None,
    )
