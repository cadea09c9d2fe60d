"""Microseconds that a mixed step's schedule() takes, and how many of them are ours and not vLLM's.

Run: python benchmarks/schedule_step.py MODEL_FOLDER. Only the scheduler is real: there is no model and no
worker; a stub answers each step with one token for every decode and a vector for every finished embedding.
256 generations run and 20 000 requests wait, half of them embeddings, all of 200 tokens; a generation writes
100 to 700 tokens. The median is over 200 steps.
What a step costs depends on what it starts: `--mixed-step-tokens 0` fills the budget of 2 048 tokens with
some nine requests, the CPU's own bound of 256 with one or two.
"""

from __future__ import annotations

import argparse
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
from orthrus.engine.step_size import StepSize
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


def measure(policy: str, model: Path, waiting: int, mixed_step_tokens: int) -> tuple[float, float]:
    """Median microseconds of ours and of vLLM's part."""
    scheduler = make_scheduler(
        TimedMixed,
        model,
        blocks=20_000,
        orthrus={"policy": policy, "mixed_step_tokens": 0},
        max_num_seqs=RUNNING,
        max_num_batched_tokens=BUDGET,
        max_model_len=1024,
    )
    for i in range(waiting):
        scheduler.add_request(request(f"{i}", 200, embed() if i % 2 else generate(100 + 37 * i % 601)))
    ours, theirs = [], []
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:  # whole budgets have filled the house by now
            scheduler._step_size = StepSize(mixed_step_tokens)
        INSIDE.clear()
        start = time.perf_counter()
        output = scheduler.schedule()
        total = time.perf_counter() - start
        if step >= WARM_UP:
            ours.append(total - INSIDE[0])
            theirs.append(INSIDE[0])
        answer(scheduler, output)
    assert len(scheduler.running) >= RUNNING - 16, f"only {len(scheduler.running)} requests run"
    return median(ours) * 1e6, median(theirs) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="checkpoint folder")
    parser.add_argument("--mixed-step-tokens", type=int, default=256, help="0: the whole budget")
    args = parser.parse_args()
    print(f"{'policy':12} {'waiting':>8} {'ours us':>8} {'vLLM us':>8} {'share':>6}")  # noqa: T201
    for policy in POLICIES:
        for waiting in (2_000, WAITING):
            ours, theirs = measure(policy, args.model, waiting, args.mixed_step_tokens)
            print(f"{policy:12} {waiting:8} {ours:8.0f} {theirs:8.0f} {ours / theirs:6.1%}")  # noqa: T201


if __name__ == "__main__":
    main()
