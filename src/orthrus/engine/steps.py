"""What each step did, as Prometheus metrics and as a JSONL trace."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

from orthrus.policy.work import Kind, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orthrus.engine.compat import SchedulerOutput
    from orthrus.engine.config import OrthrusConfig
    from orthrus.engine.scheduler import MixedScheduling


@dataclass(slots=True)
class StepRecord:
    """One step. Sizes are tokens (`budget`, `tokens`, `remaining`) or requests (`running`, `waiting`)."""

    budget: int
    tokens: dict[str, int] = field(default_factory=dict)
    remaining: dict[str, int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    credits: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @classmethod
    def before(
        cls,
        scheduler: MixedScheduling,
        remaining: Mapping[Kind, int],
        refused: Mapping[Kind, Refusal] = MappingProxyType({}),
    ) -> StepRecord:
        """The part that is only known before the step is scheduled.

        `remaining` are the prompt tokens still to compute; `refused` says why a request of a kind could not
        start in this step.
        """
        return cls(
            budget=scheduler.max_num_scheduled_tokens,
            remaining={kind.value: tokens for kind, tokens in remaining.items()},
            refused={kind.value: why.value for kind, why in refused.items()},
        )

    def after(
        self, scheduler: MixedScheduling, output: SchedulerOutput, scheduled: Mapping[Kind, int]
    ) -> None:
        """Fill in what vLLM scheduled: `scheduled` tokens of embeddings and prefills, the rest decodes."""
        embed, prefill = scheduled.get(Kind.EMBED, 0), scheduled.get(Kind.PREFILL, 0)
        self.tokens = {
            "embed": embed,
            "prefill": prefill,
            "decode": output.total_num_scheduled_tokens - embed - prefill,
        }
        running, waiting = scheduler.get_request_counts()
        waiting_embed = len(scheduler.waiting.kinds[Kind.EMBED])
        running_embed = len(scheduler.embeddings) - waiting_embed
        self.running = {"embed": running_embed, "generate": running - running_embed}
        self.waiting = {"embed": waiting_embed, "generate": waiting - waiting_embed}
        self.credits = dict(scheduler.mix_policy.state())

    @property
    def mix(self) -> str:
        """ "embed", "generate" or "mixed"."""
        generate = self.tokens["prefill"] + self.tokens["decode"]
        if self.tokens["embed"] and generate:
            return "mixed"
        return "embed" if self.tokens["embed"] else "generate"


class StepRecorder:
    """Writes the records of one engine to its metrics and, where asked, to a trace file."""

    def __init__(self, config: OrthrusConfig, replica: int) -> None:
        self._steps = 0
        self._trace: TextIO | None = None
        if config.trace_steps:
            path = Path(config.trace_steps)
            if replica:
                path = path.with_name(f"{path.stem}.{replica}{path.suffix}")
            self._trace = path.open("w", buffering=1)
        # Without a multi-process directory nobody outside this process could read the metrics.
        self._metrics = _StepMetrics() if os.environ.get("PROMETHEUS_MULTIPROC_DIR") else None

    @property
    def enabled(self) -> bool:
        """Whether anybody reads the records."""
        return self._metrics is not None or self._trace is not None

    def write(self, record: StepRecord) -> None:
        """Record one step; a step that scheduled nothing leaves no trace line and is not counted."""
        if self._metrics is not None:
            self._metrics.update(record)
        if not any(record.tokens.values()):
            return
        self._steps += 1
        if self._trace is not None:
            line = {"step": self._steps, "time": time.time(), "mix": record.mix}
            for name in StepRecord.__slots__:
                line[name] = getattr(record, name)
            self._trace.write(json.dumps(line) + "\n")

    def close(self) -> None:
        if self._trace is not None:
            self._trace.close()
            self._trace = None


class _StepMetrics:
    """Metrics of the engine process, which the API process collects through a shared directory."""

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

    def update(self, record: StepRecord) -> None:
        if any(record.tokens.values()):
            self._steps[record.mix].inc()
            self._fill.observe(sum(record.tokens.values()) / record.budget)
            for kind, tokens in record.tokens.items():
                self._last[kind].set(tokens)
                if tokens:
                    self._tokens[kind].inc(tokens)
        for gauges, values in (
            (self._running, record.running),
            (self._waiting, record.waiting),
            (self._remaining, record.remaining),
            (self._credit, {kind: record.credits.get(f"credit_{kind}", 0.0) for kind in self._credit}),
        ):
            for kind, value in values.items():
                if kind in gauges:
                    gauges[kind].set(value)
        for kind, reason in record.refused.items():
            self._refused.labels(kind=kind, reason=reason).inc()
