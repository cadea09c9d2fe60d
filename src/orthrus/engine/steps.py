"""What each step did, as Prometheus metrics and as a JSONL trace."""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from orthrus.engine.step_metrics import StepMetrics
from orthrus.policy.work import Kind, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orthrus.engine.compat import SchedulerOutput
    from orthrus.engine.config import OrthrusConfig
    from orthrus.engine.scheduler import MixedScheduling

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepRecord:
    """One step. Sizes are tokens (`budget`, `tokens`, `remaining`) or requests (`running`, `waiting`)."""

    budget: int
    tokens: dict[str, int] = field(default_factory=dict)
    remaining: Mapping[Kind, int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    credits: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[Kind, Refusal] = field(default_factory=dict)

    @classmethod
    def before(cls, scheduler: MixedScheduling, remaining: Mapping[Kind, int]) -> StepRecord:
        """The part known only before the step is scheduled: `remaining` prompt tokens to compute."""
        return cls(scheduler.max_num_scheduled_tokens, remaining=remaining)

    def after(
        self,
        scheduler: MixedScheduling,
        output: SchedulerOutput,
        scheduled: Mapping[Kind, int],
        refused: Mapping[Kind, Refusal],
    ) -> None:
        """Fill in what vLLM scheduled: `scheduled` tokens of embeddings and prefills, the rest decodes.

        `refused` says why a request of a kind could not start.
        """
        self.refused = refused
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
        self.credits = scheduler.mix_policy.state()

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
        self._metrics = StepMetrics() if os.environ.get("PROMETHEUS_MULTIPROC_DIR") else None

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
            try:
                self._trace.write(json.dumps(line) + "\n")
            except OSError as error:  # a full disk is no reason to stop serving
                logger.error("The step trace ends at step %d: %s", self._steps, error)
                with suppress(OSError):  # it still holds the line that could not be written
                    self._trace.close()
                self._trace = None

    def close(self) -> None:
        if self._trace is not None:
            self._trace.close()
            self._trace = None
