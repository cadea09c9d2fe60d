"""What a policy may want to know beyond remaining prompt tokens: expected decodes and how long one waited."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from orthrus.policy.work import Kind

if TYPE_CHECKING:
    from orthrus.engine.compat import Request
    from orthrus.engine.scheduler import MixedScheduling
    from orthrus.policy.options import PolicyOptions
    from orthrus.policy.work import WorkItem

NEWEST_WEIGHT = 0.1
"""Weight of the newest generation in the running mean of output lengths."""


class Outlook:
    """Estimates for the options `count_decode` and `ttft_target_s`; costs nothing while both are off."""

    def __init__(self, scheduler: MixedScheduling, options: PolicyOptions) -> None:
        self._scheduler = scheduler
        self._counts_decodes = options.count_decode
        self._mean_output: float | None = None

    def observe(self, request: Request) -> None:
        """Learn from a finished generation how long outputs are, in tokens."""
        if self._counts_decodes and request.pooling_params is None and request.num_output_tokens:
            length = float(request.num_output_tokens)
            mean = length if self._mean_output is None else self._mean_output
            self._mean_output = mean + NEWEST_WEIGHT * (length - mean)

    def expected_decode_tokens(self) -> int:
        """Output tokens still to come from all generations: `max_tokens`, or the running mean if smaller."""
        waiting = self._scheduler.real_waiting
        expected = float(waiting.max_output_tokens)
        if self._mean_output is not None:
            expected = min(expected, self._mean_output * len(waiting.kinds[Kind.PREFILL]))
        return int(expected + sum(map(self._left, self._scheduler.running)))

    def wait_s(self, item: WorkItem) -> float:
        """Seconds since the request arrived, also for one that was preempted after its first token."""
        return max(0.0, time.time() - self._scheduler.requests[item.request_id].arrival_time)

    def _left(self, request: Request) -> float:
        if request.pooling_params is not None:
            return 0.0
        done = request.num_output_tokens
        left = float(request.max_tokens - done)
        if self._mean_output is not None:
            left = min(left, max(1.0, self._mean_output - done))
        return left
