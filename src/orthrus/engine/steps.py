"""What each step did, as Prometheus metrics and as a JSONL trace."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from orthrus.engine.step_metrics import StepMetrics, mix_of
from orthrus.policy.work import Kind, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orthrus.engine.compat import SchedulerOutput
    from orthrus.engine.config import OrthrusConfig
    from orthrus.engine.scheduler import MixedScheduling

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepRecord:
    """One step. Sizes are tokens (`budget`, `tokens`, `remaining`) or requests (`running`, `waiting`).

    `time` is when it was planned, in seconds since the epoch. `remaining` is what was to compute before the
    step, `refused` why a request of a kind could not start. `discarded` are the tokens of steps that
    were discarded for a generation since the step before.
    """

    time: float
    mix: str
    budget: int
    tokens: Mapping[Kind, int]
    remaining: Mapping[Kind, int]
    running: Mapping[str, int]
    waiting: Mapping[str, int]
    credits: Mapping[str, float]
    refused: Mapping[Kind, Refusal]
    discarded: int

    @classmethod
    def of(
        cls,
        scheduler: MixedScheduling,
        planned_at: float,
        budget: int,
        scheduled: Mapping[Kind, int],
        remaining: Mapping[Kind, int],
        refused: Mapping[Kind, Refusal],
        discarded: int,
    ) -> StepRecord:
        """The scheduler's newest step, with its tokens `scheduled` by kind."""
        running, waiting = scheduler.get_request_counts()
        waiting_embed = len(scheduler.waiting.kinds[Kind.EMBED])
        running_embed = len(scheduler.embeddings) - waiting_embed
        return cls(
            planned_at,
            mix_of(scheduled),
            budget,
            scheduled,
            remaining,
            {"embed": running_embed, "generate": running - running_embed},
            {"embed": waiting_embed, "generate": waiting - waiting_embed},
            scheduler.mix_policy.state(),
            refused,
            discarded,
        )


class StepRecorder:
    """Writes the records of one engine to its metrics and, where asked, to a trace file."""

    def __init__(self, config: OrthrusConfig, replica: int) -> None:
        self._steps = 0
        self._discarded = 0
        self._trace: TextIO | None = None
        if config.trace_steps:
            path = Path(config.trace_steps)
            if replica:
                path = path.with_name(f"{path.stem}.{replica}{path.suffix}")
            self._trace = path.open("w", buffering=1)
        # Without a multi-process directory nobody outside this process could read the metrics.
        self._metrics = StepMetrics() if os.environ.get("PROMETHEUS_MULTIPROC_DIR") else None

    @property
    def enabled(self) -> bool:
        """Whether anybody reads the records."""
        return self._metrics is not None or self._trace is not None

    def step(
        self,
        scheduler: MixedScheduling,
        output: SchedulerOutput,
        planned_at: float,
        budget: int,
        scheduled: Mapping[Kind, int],
        remaining: Mapping[Kind, int],
        refused: Mapping[Kind, Refusal],
    ) -> None:
        """Record the step of `output`; the full record is made only where somebody reads it now."""
        total = output.total_num_scheduled_tokens
        metrics = self._metrics
        if metrics is not None:
            metrics.count(scheduled, total / budget, refused)
            if not metrics.is_due(total):
                metrics = None
        if metrics is None and self._trace is None:
            return
        record = StepRecord.of(scheduler, planned_at, budget, scheduled, remaining, refused, self._discarded)
        if metrics is not None:
            metrics.write(record)
        if self._trace is not None and total:
            self._write(self._trace, record)
            self._discarded = 0

    def discarded(self, tokens: int) -> None:
        """A step of so many tokens was discarded, and is no step of the record."""
        self._discarded += tokens
        if self._metrics is not None:
            self._metrics.discarded(tokens)

    def _write(self, trace: TextIO, record: StepRecord) -> None:
        self._steps += 1
        line = {"step": self._steps} | {name: getattr(record, name) for name in StepRecord.__slots__}
        try:
            trace.write(json.dumps(line) + "\n")
        except OSError as error:  # a full disk is no reason to stop serving
            logger.error("The step trace ends at step %d: %s", self._steps, error)
            with suppress(OSError):  # it still holds the line that could not be written
                trace.close()
            self._trace = None

    def close(self) -> None:
        if self._trace is not None:
            self._trace.close()
            self._trace = None
