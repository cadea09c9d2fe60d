"""Microseconds per plan() and settle() of each policy, by the number of waiting requests.

Run: python benchmarks/policy_step.py. Prints the median over 300 steps of about 20 chunks each.
"""

from __future__ import annotations

import sys
import time
from statistics import median

from orthrus.policy.options import PolicyOptions
from orthrus.policy.queues import KindQueue
from orthrus.policy.registry import POLICIES, make
from orthrus.policy.work import Kind, StepView

STEPS = 300
BUDGET = 5120
DECODES = 256
TOKENS = 256  # of every request, so that one chunk is one request and a step holds 20


def measure(name: str, waiting: int) -> tuple[float, float, int]:
    """Median microseconds of plan() and of settle(), and the chunks of the last plan."""
    queues = {kind: KindQueue(kind) for kind in (Kind.EMBED, Kind.PREFILL)}
    for number in range(waiting):
        kind = Kind.EMBED if number % 2 else Kind.PREFILL
        queues[kind].add(f"request-{number}", TOKENS, number)
    policy = make(name, PolicyOptions())
    view = StepView(BUDGET, DECODES, queues[Kind.EMBED], queues[Kind.PREFILL], lambda item: None)
    plans, settles, chunks = [], [], 0
    for _ in range(STEPS):
        start = time.perf_counter()
        plan = policy.plan(view)
        planned = time.perf_counter()
        scheduled = dict.fromkeys(Kind, 0)
        for chunk in plan.chunks:
            scheduled[chunk.kind] += chunk.tokens
        before = time.perf_counter()
        policy.settle(scheduled)
        settled = time.perf_counter()
        plans.append(planned - start)
        settles.append(settled - before)
        chunks = len(plan.chunks)
    return median(plans) * 1e6, median(settles) * 1e6, chunks


def main() -> None:
    sys.stdout.write(f"{'policy':<12}{'waiting':>8}{'chunks':>8}{'plan us':>10}{'settle us':>11}\n")
    for name in POLICIES:
        for waiting in (200, 20_000):
            plan, settle, chunks = measure(name, waiting)
            sys.stdout.write(f"{name:<12}{waiting:>8}{chunks:>8}{plan:>10.1f}{settle:>11.1f}\n")


if __name__ == "__main__":
    main()
