"""The engines' own counts over a window, from vLLM's /metrics: steps, tokens in them, preemptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import httpx

NAMES = {
    "steps": "vllm:iteration_tokens_total_count",
    "tokens": "vllm:iteration_tokens_total_sum",
    "preemptions": "vllm:num_preemptions_total",
}


@dataclass(frozen=True)
class Counters:
    """Sums over all servers so far. `steps` counts only steps that had tokens."""

    steps: float = 0.0
    tokens: float = 0.0
    preemptions: float = 0.0

    def since(self, earlier: Counters) -> Counters:
        """What was counted after `earlier`."""
        return Counters(
            self.steps - earlier.steps, self.tokens - earlier.tokens, self.preemptions - earlier.preemptions
        )


def parse(text: str) -> Counters:
    """The counters in a Prometheus text, summed over labels."""
    sums = dict.fromkeys(NAMES, 0.0)
    for line in text.splitlines():
        for field, name in NAMES.items():
            if line.startswith((name + "{", name + " ")):
                sums[field] += float(line.rsplit(" ", 1)[1])
    return Counters(**sums)


def read(urls: Sequence[str]) -> Counters | None:
    """The counters of all servers now; None when one of them does not offer them."""
    total = [0.0, 0.0, 0.0]
    for url in dict.fromkeys(urls):
        try:
            answer = httpx.get(f"{url}/metrics", timeout=10, trust_env=False)
        except httpx.TransportError:
            return None
        if answer.status_code != httpx.codes.OK or NAMES["steps"] not in answer.text:
            return None
        found = parse(answer.text)
        total = [
            old + new for old, new in zip(total, (found.steps, found.tokens, found.preemptions), strict=True)
        ]
    return Counters(*total)
