"""The steps of one engine as Prometheus metrics (docs/server.md lists them)."""

from __future__ import annotations

import time
from collections import Counter as Tally
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orthrus.engine.steps import StepRecord

INTERVAL_S = 0.1
"""Metrics are written this often: twenty writes to shared memory cost more than planning a step does."""


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
        self._newest: dict[str, int] = {}
        self._mixes: Tally[str] = Tally()
        self._scheduled: Tally[str] = Tally()
        self._fills: list[float] = []
        self._heads: Tally[tuple[str, str]] = Tally()

    def update(self, record: StepRecord) -> None:
        """Count one step."""
        total = sum(record.tokens.values())
        if total:
            self._newest = record.tokens
            self._mixes[record.mix] += 1
            self._fills.append(total / record.budget)
            for kind, tokens in record.tokens.items():
                self._scheduled[kind] += tokens
        for head in record.refused.items():
            self._heads[head] += 1
        now = time.monotonic()
        if not total or now >= self._due:
            self._due = now + INTERVAL_S
            self._write(record)

    def _write(self, record: StepRecord) -> None:
        """Write the sums since the last time, and the gauges as the step of `record` has them."""
        for mix, count in self._mixes.items():
            self._steps[mix].inc(count)
        for kind, tokens in self._scheduled.items():
            self._tokens[kind].inc(tokens)
        for fill in self._fills:
            self._fill.observe(fill)
        for (kind, reason), count in self._heads.items():
            self._refused.labels(kind=kind, reason=reason).inc(count)
        for sums in (self._mixes, self._scheduled, self._fills, self._heads):
            sums.clear()
        for kind, tokens in self._newest.items():
            self._last[kind].set(tokens)
        for gauges, values in (
            (self._running, record.running),
            (self._waiting, record.waiting),
            (self._remaining, record.remaining),
            (self._credit, {kind: record.credits.get(f"credit_{kind}", 0.0) for kind in self._credit}),
        ):
            for kind, value in values.items():
                if kind in gauges:
                    gauges[kind].set(value)
