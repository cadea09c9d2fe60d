"""Microseconds that a mixed step's schedule() takes, and how many of them are ours and not vLLM's.

Run: python benchmarks/schedule_step.py MODEL_FOLDER. Only the scheduler is real: there is no model and no
worker; a stub answers each step with one token for every decode and a vector for every finished embedding.
Metrics and prefix caching are on, as in a server. 256 generations run and 20 000 requests wait, half of them
embeddings, all of 200 tokens that no two share; a generation writes 100 to 700 tokens. Medians over 200
steps, and the mean of ours: the metrics are not written in every step.
"after" is what settles and records a step once the workers have it, while the model runs.
What a step costs depends on what it starts: `--mixed-step-tokens 0` fills the budget of 2 048 tokens with
some nine requests, the CPU's own bound of 256 with one or two.
vLLM's part includes two methods of ours that it calls instead of its own: one for each request, the other for
each that starts. The last two lines say what they and vLLM's take.
"""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engine"))
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", tempfile.mkdtemp(prefix="schedule-step-"))

from bare_scheduler import BLOCK, answer, make_scheduler
from engine_driver import embed, generate
from vllm import PoolingParams, SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from orthrus.engine import scheduler as scheduler_module
from orthrus.engine.grants import StepGrants
from orthrus.engine.scheduler import MixedScheduler
from orthrus.engine.step_size import StepSize
from orthrus.engine.steps import StepRecorder
from orthrus.engine.waiting import StepQueue
from orthrus.policy.registry import POLICIES
from orthrus.policy.work import Plan

RUNNING, WAITING, WARM_UP, STEPS = 256, 20_000, 60, 200
BUDGET, PROMPT = 2048, 200
INSIDE: list[float] = []
POPS: list[float] = []
RECORDERS: list[StepRecorder] = []


class Timed(Scheduler):
    """vLLM's schedule() with a clock around it; ours calls it by way of super()."""

    def schedule(self, throttle_prefills: bool = False):  # type: ignore[no-untyped-def]
        start = time.perf_counter()
        output = super().schedule(throttle_prefills)
        INSIDE.append(time.perf_counter() - start)
        return output


class TimedPops(StepQueue):
    """Our queue of a step's starting requests with a clock around what vLLM calls for each."""

    def pop_request(self) -> Request:
        start = time.perf_counter()
        request = super().pop_request()
        POPS.append(time.perf_counter() - start)
        return request


class TimedMixed(MixedScheduler, Timed):
    """MixedScheduler, then Timed, then Scheduler."""


def request(number: int, params: PoolingParams | SamplingParams) -> Request:
    """A request whose prompt begins with its own number."""
    pooling = params if isinstance(params, PoolingParams) else None
    return Request(
        request_id=f"{number}",
        prompt_token_ids=[10 + number, *[7] * (PROMPT - 1)],
        sampling_params=None if pooling else params,
        pooling_params=pooling,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )


def crowd(policy: str, model: Path, waiting: int) -> TimedMixed:
    """A scheduler with `waiting` requests."""
    scheduler = make_scheduler(
        TimedMixed,
        model,
        orthrus={"policy": policy, "mixed_step_tokens": 0},
        max_num_seqs=RUNNING,
        blocks=20_000,
        enable_prefix_caching=True,
        max_num_batched_tokens=BUDGET,
        max_model_len=1024,
    )
    # A process registers its metrics once, so all schedulers here write to those of the first.
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    RECORDERS.append(scheduler._recorder)
    scheduler._recorder = RECORDERS[0]
    for i in range(waiting):
        scheduler.add_request(request(i, embed() if i % 2 else generate(100 + 37 * i % 601)))
    return scheduler


def measure(scheduler: TimedMixed, mixed_step_tokens: int) -> tuple[float, float, float, float]:
    """Microseconds: the median and the mean of ours, the median of vLLM's part, the mean of ours after it."""
    ours, theirs, after = [], [], []
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:  # whole budgets have filled the house by now
            scheduler._step_size = StepSize(mixed_step_tokens, itl_target_s=0)
        INSIDE.clear()
        output = None  # freeing the last one takes time, too, and is nobody's part of this step
        start = time.perf_counter()
        output = scheduler.schedule()
        total = time.perf_counter() - start
        scheduler._settle()
        if step >= WARM_UP:
            ours.append(total - INSIDE[0])
            theirs.append(INSIDE[0])
            after.append(time.perf_counter() - start - total)
        answer(scheduler, output)
    assert len(scheduler.running) >= RUNNING - 16, f"only {len(scheduler.running)} requests run"
    return median(ours) * 1e6, mean(ours) * 1e6, median(theirs) * 1e6, mean(after) * 1e6


def hooks(scheduler: TimedMixed) -> tuple[float, float]:
    """Microseconds of our method and of vLLM's for each running decode, medians of 200 rounds over all."""
    decodes = [r for r in scheduler.running if r.pooling_params is None and not r.is_prefill_chunk]
    scheduler._grants = StepGrants(Plan())
    times: dict[type, list[float]] = {TimedMixed: [], Scheduler: []}
    for _ in range(STEPS):
        for cls, taken in times.items():
            hook = cls._reserve_prefill_lookahead
            start = time.perf_counter()
            for decode in decodes:
                hook(scheduler, decode, decode.num_computed_tokens, 1)
            taken.append((time.perf_counter() - start) / len(decodes))
    return median(times[TimedMixed]) * 1e6, median(times[Scheduler]) * 1e6


def pops(model: Path) -> tuple[float, float]:
    """Microseconds of our queue's pop in steps of the whole budget and of vLLM's, medians."""
    scheduler_module.StepQueue = TimedPops  # type: ignore[misc]
    measure(crowd("ibs", model, WAITING), 0)
    queue = create_request_queue(SchedulingPolicy.FCFS)
    for i in range(WAITING):
        queue.add_request(request(i, generate(16)))
    taken, kept = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        popped = queue.pop_request()
        taken.append(time.perf_counter() - start)
        kept.append(popped)  # freeing it is not what is measured
    return median(POPS) * 1e6, median(taken) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="checkpoint folder")
    parser.add_argument("--mixed-step-tokens", type=int, default=256, help="0: the whole budget")
    args = parser.parse_args()
    atexit.register(shutil.rmtree, os.environ["PROMETHEUS_MULTIPROC_DIR"])
    init_none_hash(sha256)
    columns = f"{'ours us':>8} {'mean':>6} {'vLLM us':>8} {'share':>6} {'after':>6}"
    print(f"{'policy':12} {'waiting':>8} {columns}")  # noqa: T201
    for policy in POLICIES:
        for waiting in (2_000, WAITING):
            scheduler = crowd(policy, args.model, waiting)
            ours, average, theirs, after = measure(scheduler, args.mixed_step_tokens)
            print(  # noqa: T201
                f"{policy:12} {waiting:8} {ours:8.0f} {average:6.0f} {theirs:8.0f} {ours / theirs:6.1%} "
                f"{after:6.0f}"
            )
    pop, stock_pop = pops(args.model)
    print(f"for each start: {pop:.2f} us in our method, {stock_pop:.2f} us in vLLM's")  # noqa: T201
    own, stock = hooks(scheduler)
    print(f"for each decode: {own:.2f} us in our method, {stock:.2f} us in vLLM's")  # noqa: T201


if __name__ == "__main__":
    main()
