"""Whether the head of a kind can start in this step: slots, adapters and KV blocks, asked per kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orthrus.engine.buffer_room import BufferRoom
from orthrus.engine.kv_room import KvRoom
from orthrus.engine.overtaking import Overtaken
from orthrus.engine.prefixes import Prefixes
from orthrus.engine.slots import free_slots
from orthrus.engine.waiting import adapter_of
from orthrus.policy.work import Kind, Refusal, WorkItem

if TYPE_CHECKING:
    from orthrus.engine.compat import Request
    from orthrus.engine.scheduler import MixedScheduling


class Admission:
    """The `admit` of each step's StepView; what it grants counts as taken for the rest of the step.

    It answers before vLLM's `schedule()` runs, with the same arithmetic (v1/core/sched/scheduler.py, the
    waiting loop), because there a head that does not fit ends the loop for both kinds.

    Requests without an adapter slot are passed over, as in vLLM (`has_adapter_slot`, `passed_over`). There
    a busy adapter can keep another one out for ever. Here, while the earliest request without a slot waits,
    no later one takes up an adapter that is not in use, and as many as the batch has rows may
    still join an adapter in use; then it drains.
    """

    def __init__(self, scheduler: MixedScheduling) -> None:
        self.passed_over: dict[Kind, Refusal] = {}
        self.admitted: list[Request] = []
        self._scheduler = scheduler
        self._waiting = scheduler.real_waiting.requests
        self._max_adapters: int = scheduler.lora_config.max_loras if scheduler.lora_config else 0
        self._prefixes = Prefixes(scheduler)
        self._kv_room = KvRoom(scheduler, self._prefixes)
        self._waiter = Overtaken(self._waiting, scheduler.max_num_running_reqs)
        self._adapters: set[int] = set()
        self._buffer: BufferRoom | None = None
        self._slots = self._generation_slots = 0
        self._has_buffer = scheduler.settings.pooling_buffer_tokens > 0

    def begin_step(self, running_embeddings: int) -> None:
        """Count anew what is free; `running_embeddings` are among the scheduler's running requests."""
        scheduler = self._scheduler
        running = scheduler.running
        self.passed_over = {}
        self.admitted = []
        self._slots, self._generation_slots = free_slots(scheduler, running_embeddings)
        self._kv_room.begin_step()
        if self._max_adapters:
            self._adapters = {r.lora_request.lora_int_id for r in running if r.lora_request is not None}
            self._waiter.begin_step()
        if self._has_buffer:
            self._buffer = BufferRoom(scheduler.settings, running)

    def end_step(self) -> None:
        """Let go of what this step started; to be called before any of it can end."""
        self.admitted = []

    def __call__(self, item: WorkItem) -> Refusal | None:
        request = self._waiting[item.request_id]
        adapter = adapter_of(request) if self._max_adapters else 0
        if adapter and not self.has_adapter_slot(item, adapter):
            return Refusal.ADAPTER_SLOTS  # the other kind took the last slot after this one became the head
        if adapter:
            self._waiter.has_its_turn(item)  # it may still lack something else, but not an adapter
        generates = item.kind is not Kind.EMBED
        if self._slots <= 0 or (generates and self._generation_slots <= 0):
            return Refusal.SEQUENCE_SLOTS
        if not self._kv_room.has(item, request):
            return Refusal.KV_BLOCKS
        if self._buffer is not None and not self._buffer.take(request):
            return Refusal.POOLING_BUFFER
        self._slots -= 1
        self._generation_slots -= generates
        self.admitted.append(request)
        self._kv_room.take(item)
        if adapter:
            self._adapters.add(adapter)
            self._waiter.starts(item)
        return None

    def spare_tokens(self) -> int:
        """Tokens to plan beyond the budget, for what cached prefixes of those admitted leave unused."""
        may_hit = self._prefixes.is_used and any(map(self._prefixes.may_hit, self.admitted))
        return self._scheduler.max_num_scheduled_tokens if may_hit else 0

    def has_adapter_slot(self, item: WorkItem, adapter: int) -> bool:
        """Whether a waiting request of this adapter could start; if not, it is passed over in this step."""
        is_used = adapter in self._adapters
        if self._waiter.is_before(item):
            has_slot = is_used and not self._waiter.is_due
        else:
            has_slot = is_used or len(self._adapters) < self._max_adapters
            if not has_slot:
                self._waiter.lacks(item)
        if not has_slot:
            self.passed_over[item.kind] = Refusal.ADAPTER_SLOTS
        return has_slot
