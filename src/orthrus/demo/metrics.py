"""Orthrus' counters from the server's /metrics, and what happened between two readings."""

from __future__ import annotations

import time
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

TOKENS = "orthrus:scheduled_tokens_total"
STEPS = "orthrus:steps_total"


class MissingCountersError(RuntimeError):
    """The server's /metrics lacks Orthrus' counters."""


@dataclass(frozen=True)
class Counters:
    """Totals since the server's start. `tokens` by kind: embed, prefill, decode; `steps` by mix:
    embed, generate, mixed; `time` in seconds of the monotonic clock."""

    time: float
    tokens: dict[str, float]
    steps: dict[str, float]

    @classmethod
    def parse(cls, text: str, now: float) -> Counters:
        """Read Prometheus' text format, summed over replicas. Raises MissingCountersError."""
        tokens: dict[str, float] = {}
        steps: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == TOKENS:
                    kind = sample.labels["kind"]
                    tokens[kind] = tokens.get(kind, 0) + sample.value
                elif sample.name == STEPS:
                    mix = sample.labels["mix"]
                    steps[mix] = steps.get(mix, 0) + sample.value
        if not tokens and not steps:
            raise MissingCountersError(f"the server's /metrics has no {TOKENS}; is it `orthrus serve`?")
        return cls(now, tokens, steps)

    def since(self, earlier: Counters) -> Counters:
        """The difference; its `time` is the seconds between the two."""
        return Counters(
            self.time - earlier.time,
            {kind: value - earlier.tokens.get(kind, 0) for kind, value in self.tokens.items()},
            {mix: value - earlier.steps.get(mix, 0) for mix, value in self.steps.items()},
        )

    def rate(self, kind: str) -> float:
        """Tokens of `kind` per second, of a difference."""
        return self.tokens.get(kind, 0) / self.time if self.time > 0 else 0.0

    @property
    def mixed_share(self) -> float:
        """Share (0 to 1) of the steps that held embedding and generation tokens; 0 without a step."""
        total = sum(self.steps.values())
        return self.steps.get("mixed", 0) / total if total else 0.0


async def read_counters(client: httpx.AsyncClient) -> Counters:
    """GET /metrics of the client's base URL."""
    answer = await client.get("/metrics")
    answer.raise_for_status()
    return Counters.parse(answer.text, time.monotonic())
