"""Steps of embeddings alone that are discarded for a generation that arrives early in them.

On a CPU a step takes up to a second, and the chat that comes would wait for its end. A discarded step is
scheduled again; until a step has run, nothing of it is offered to other requests.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orthrus.engine import arrival_flag
from orthrus.engine.arrival_flag import ArrivalFlag
from orthrus.engine.compat import FullAttentionSpec, current_platform
from orthrus.engine.step_watch import WATCHED

if TYPE_CHECKING:
    from collections.abc import Callable

    from orthrus.engine.compat import Request, SchedulerOutput
    from orthrus.engine.scheduler import MixedScheduling


class Discards:
    """Which steps may be discarded, and what their scheduling has to take back.

    Only with a TTFT target, on a CPU, and where one worker runs one step at a time: several would have to
    agree on where to stop. Layers other than attention keep a state that cannot be computed twice.
    """

    def __init__(self, scheduler: MixedScheduling, ttft_target_s: float) -> None:
        parallel = scheduler.parallel_config
        is_possible = (
            ttft_target_s > 0
            and current_platform.is_cpu()
            and hasattr(os, "memfd_create")
            and scheduler.vllm_config.max_concurrent_batches == 1
            and parallel.world_size == parallel.data_parallel_size == 1
            and parallel.distributed_executor_backend in ("mp", "uni")
            and scheduler.connector is None
            and all(
                isinstance(group.kv_cache_spec, FullAttentionSpec)
                for group in scheduler.kv_cache_config.kv_cache_groups
            )
        )
        self._requests = scheduler.requests
        self._kv = scheduler.kv_cache_manager
        self._flag = ArrivalFlag() if is_possible else None
        self._owed = 0
        self._step: SchedulerOutput | None = None
        self._full_blocks: list[tuple[Request, int]] = []
        if is_possible:
            arrival_flag.install()

    @property
    def is_watched(self) -> bool:
        """Whether the step that runs may be discarded; then `keep` or `take_back` must follow."""
        return self._step is not None

    def arrived(self) -> None:
        """A generation has arrived; from whatever thread."""
        if self._flag is not None:
            self._flag.set()

    def schedule(self, plan: Callable[[], SchedulerOutput]) -> SchedulerOutput:
        """The step of embeddings alone that `plan` schedules, marked as one that may be discarded.

        After a discarded step as many tokens run before the next one may be: embeddings lose at most a third
        of their time, however many generations come.
        """
        if self._flag is None:
            return plan()
        if self._owed > 0:
            output = plan()
            self._owed -= output.total_num_scheduled_tokens
            return output
        self._flag.clear()
        self._full_blocks = []
        coordinator = self._kv.coordinator
        # vLLM caches a full block when it is allocated, and others of this step would start behind it.
        coordinator.cache_blocks = lambda request, tokens: self._full_blocks.append((request, tokens))
        try:
            output = plan()
        finally:
            del coordinator.cache_blocks
        if output.total_num_scheduled_tokens:
            setattr(output, WATCHED, self._flag.address)
            self._step = output
        return output

    def keep(self) -> None:
        """The step has run: its full blocks go to the prefix cache."""
        step = self._step
        assert step is not None
        for request, tokens in self._end():
            request_id = request.request_id
            # Not one that was aborted meanwhile, or preempted by the same `schedule()`.
            if self._requests.get(request_id) is request and request_id in step.num_scheduled_tokens:
                self._kv.coordinator.cache_blocks(request, tokens)

    def take_back(self) -> int:
        """The step was discarded: its requests have computed what they had before. Returns its tokens."""
        step = self._step
        assert step is not None
        self._end()
        for request_id, tokens in step.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is not None:  # not aborted meanwhile
                request.num_computed_tokens -= tokens
                request.is_prefill_chunk = True
        self._owed = step.total_num_scheduled_tokens
        return self._owed

    def _end(self) -> list[tuple[Request, int]]:
        full_blocks, self._full_blocks, self._step = self._full_blocks, [], None
        return full_blocks
