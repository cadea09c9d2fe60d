"""Microseconds that a mixed step's schedule() takes, and how many of them are ours and not vLLM's.

Run: python benchmarks/schedule_step.py MODEL_FOLDER. Only the scheduler is real: there is no model and no
worker; a stub answers each step with one token for every decode and a vector for every finished embedding.
256 requests run and 20 000 wait, half of them embeddings; the median is over 200 steps.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engine"))
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from bare_scheduler import answer, make_scheduler, request
from engine_driver import embed, generate
from vllm.v1.core.sched.scheduler import Scheduler

from orthrus.engine.scheduler import MixedScheduler
from orthrus.policy.registry import POLICIES

RUNNING, WAITING, WARM_UP, STEPS = 256, 20_000, 60, 200
BUDGET = 2048
INSIDE: list[float] = []


class Timed(Scheduler):
    """vLLM's schedule() with a clock around it; ours calls it by way of super()."""

    def schedule(self, throttle_prefills: bool = False):  # type: ignore[no-untyped-def]
        start = time.perf_counter()
        output = super().schedule(throttle_prefills)
        INSIDE.append(time.perf_counter() - start)
        return output


class TimedMixed(MixedScheduler, Timed):
    """MixedScheduler, then Timed, then Scheduler."""


def measure(policy: str, model: Path, waiting: int) -> tuple[float, float]:
    """Median microseconds of ours and of vLLM's part."""
    scheduler = make_scheduler(
        TimedMixed,
        model,
        blocks=20_000,
        orthrus={"policy": policy, "mixed_step_tokens": 0},
        max_num_seqs=RUNNING,
        max_num_batched_tokens=BUDGET,
    )
    for i in range(waiting):
        scheduler.add_request(request(f"{i}", 200, embed() if i % 2 else generate(120)))
    ours, theirs = [], []
    for step in range(WARM_UP + STEPS):
        INSIDE.clear()
        start = time.perf_counter()
        output = scheduler.schedule()
        total = time.perf_counter() - start
        if step >= WARM_UP:
            ours.append(total - INSIDE[0])
            theirs.append(INSIDE[0])
        answer(scheduler, output)
    return median(ours) * 1e6, median(theirs) * 1e6


def main() -> None:
    model = Path(sys.argv[1])
    print(f"{'policy':12} {'waiting':>8} {'ours us':>8} {'vLLM us':>8} {'share':>6}")  # noqa: T201
    for policy in POLICIES:
        for waiting in (2_000, WAITING):
            ours, theirs = measure(policy, model, waiting)
            print(f"{policy:12} {waiting:8} {ours:8.0f} {theirs:8.0f} {ours / theirs:6.1%}")  # noqa: T201


if __name__ == "__main__":
    main()
