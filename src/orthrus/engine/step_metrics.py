"""The steps of one engine as Prometheus metrics (docs/server.md lists them)."""

from __future__ import annotations

import time
from collections import Counter as Tally
from typing import TYPE_CHECKING, Any

from orthrus.policy.work import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orthrus.engine.steps import StepRecord
    from orthrus.policy.work import Refusal

INTERVAL_S = 0.1
"""Metrics are written this often: twenty writes to shared memory cost more than planning a step does."""


def mix_of(scheduled: Mapping[Kind, int]) -> str:
    """ "embed", "generate" or "mixed"."""
    if not scheduled[Kind.EMBED]:
        return "generate"
    return "mixed" if scheduled[Kind.PREFILL] or scheduled[Kind.DECODE] else "embed"


class StepMetrics:
    """Metrics of the engine process, which the API process collects through a shared directory.

    Steps are summed up and written when `INTERVAL_S` have passed since the last write, or at once with a step
    that scheduled nothing: vLLM runs one after the last request has left, so an idle engine owes nothing.
    """

    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        def by_kind(metric: Any, *kinds: str) -> dict[str, Any]:
            return {kind: metric.labels(kind=kind) for kind in kinds}

        rows, requests = ("embed", "prefill", "decode"), ("embed", "generate")
        gauge: dict[str, Any] = {"labelnames": ["kind"], "multiprocess_mode": "livesum"}
        self._tokens = by_kind(
            Counter("orthrus:scheduled_tokens", "Tokens scheduled, by kind of work", ["kind"]), *rows
        )
        self._discarded = Counter(
            "orthrus:discarded_tokens", "Tokens of steps that were discarded for a generation"
        )
        steps = Counter("orthrus:steps", "Steps that ran, by what they held", ["mix"])
        self._steps = {mix: steps.labels(mix=mix) for mix in ("embed", "generate", "mixed")}
        self._last = by_kind(Gauge("orthrus:last_step_tokens", "Tokens of the last step", **gauge), *rows)
        self._running = by_kind(Gauge("orthrus:running_requests", "Requests in flight", **gauge), *requests)
        self._waiting = by_kind(Gauge("orthrus:waiting_requests", "Requests waiting", **gauge), *requests)
        self._remaining = by_kind(
            Gauge("orthrus:remaining_tokens", "Prompt tokens still to compute", **gauge), "embed", "prefill"
        )
        self._credit = by_kind(
            Gauge("orthrus:credit", "Scheduling credit, in tokens", **gauge), "embed", "prefill"
        )
        self._fill = Histogram(
            "orthrus:budget_fill",
            "Share of the token budget that a step used",
            buckets=[i / 10 for i in range(1, 11)],
        )
        self._refused = Counter(
            "orthrus:refused_heads",
            "Requests first in line that could not start",
            ["kind", "reason"],
        )
        self._due = 0.0
        self._mixes: Tally[str] = Tally()
        self._scheduled = dict.fromkeys(Kind, 0)
        self._newest: Mapping[Kind, int] = {}
        self._fills: list[float] = []
        self._heads: Tally[tuple[Kind, Refusal]] = Tally()

    def count(self, scheduled: Mapping[Kind, int], fill: float, refused: Mapping[Kind, Refusal]) -> None:
        """Count one step: its tokens by kind, the part of its budget that they `fill`, the heads refused."""
        if fill:
            self._newest = scheduled
            self._mixes[mix_of(scheduled)] += 1
            self._fills.append(fill)
            for kind, tokens in scheduled.items():
                self._scheduled[kind] += tokens
        for head in refused.items():
            self._heads[head] += 1

    def discarded(self, tokens: int) -> None:
        """A step of `tokens` was discarded."""
        self._discarded.inc(tokens)

    def is_due(self, total: int) -> bool:
        """Whether to `write` now, after a step of `total` tokens."""
        now = time.monotonic()
        if total and now < self._due:
            return False
        self._due = now + INTERVAL_S
        return True

    def write(self, record: StepRecord) -> None:
        """Write the sums since the last time, and the gauges as the step of `record` has them."""
        for mix, count in self._mixes.items():
            self._steps[mix].inc(count)
        for kind, tokens in self._scheduled.items():
            self._tokens[kind].inc(tokens)
            self._scheduled[kind] = 0
        for fill in self._fills:
            self._fill.observe(fill)
        for (kind, reason), count in self._heads.items():
            self._refused.labels(kind=kind, reason=reason).inc(count)
        for sums in (self._mixes, self._fills, self._heads):
            sums.clear()
        for kind, tokens in self._newest.items():
            self._last[kind].set(tokens)
        for gauges, values in (
            (self._running, record.running),
            (self._waiting, record.waiting),
            (self._remaining, record.remaining),
            (self._credit, {kind: record.credits.get(f"credit_{kind}", 0.0) for kind in self._credit}),
        ):
            for name, value in values.items():
                if name in gauges:
                    gauges[name].set(value)
