"""Whether the head of a kind can start in this step: slots, adapters and KV blocks, asked per kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orthrus.engine.buffer_room import BufferRoom
from orthrus.engine.slots import SequenceSlots
from orthrus.engine.waiting import adapter_of
from orthrus.policy.work import Kind, Refusal, WorkItem

if TYPE_CHECKING:
    from orthrus.engine.compat import Request
    from orthrus.engine.scheduler import MixedScheduling


@dataclass(slots=True)
class AdapterWaiter:
    """The earliest request that found all adapter slots taken, and how many later ones have overtaken it."""

    request_id: str
    order: Any
    overtaken: int = 0


class Admission:
    """The `admit` of one step's StepView; what it grants counts as taken for the rest of the step.

    It answers before vLLM's `schedule()` runs, with the same arithmetic (v1/core/sched/scheduler.py, the
    waiting loop; v1/core/kv_cache_manager.py, `allocate_slots`), because there a head that does not
    fit ends the loop for both kinds. `running_embeddings` are among the scheduler's running requests.

    Requests without an adapter slot are passed over, as in vLLM (`has_adapter_slot`, `passed_over`). There
    a busy adapter can keep another one out for ever. Here, while the earliest request without a slot waits
    (`waiter`, kept from step to step), no later one takes up an adapter that is not in use, and
    as many as the batch has rows may still join an adapter in use; then it drains.
    """

    def __init__(
        self,
        scheduler: MixedScheduling,
        running_embeddings: int,
        waiter: AdapterWaiter | None = None,
    ) -> None:
        waiting = scheduler.real_waiting
        self.waiter = waiter if waiter is not None and waiter.request_id in waiting else None
        self.passed_over: dict[Kind, Refusal] = {}
        self._waiting = waiting
        self._kv = scheduler.kv_cache_manager
        self._whole_prompt = scheduler.scheduler_reserve_full_isl
        self._max_model_len = scheduler.max_model_len
        self._slots = SequenceSlots(scheduler, running_embeddings)
        self._max_adapters = scheduler.lora_config.max_loras if scheduler.lora_config else 0
        self._adapters = (
            {r.lora_request.lora_int_id for r in scheduler.running if r.lora_request is not None}
            if self._max_adapters
            else set()
        )
        self._max_overtaken = scheduler.max_num_running_reqs
        self._free_blocks = self._kv.block_pool.get_num_free_blocks()
        self._watermark = self._kv.watermark_blocks if scheduler.running else 0
        has_buffer = scheduler.settings.pooling_buffer_tokens > 0
        self._buffer = BufferRoom(scheduler.settings, scheduler.running) if has_buffer else None
        self._budget = scheduler.max_num_scheduled_tokens
        self._prefixes = scheduler.prefixes
        self._admitted: list[Request] = []

    def __call__(self, item: WorkItem) -> Refusal | None:
        request = self._waiting[item.request_id]
        adapter = adapter_of(request) if self._max_adapters else 0
        if adapter and not self.has_adapter_slot(item, adapter):
            return Refusal.ADAPTER_SLOTS  # the other kind took the last slot after this one became the head
        if self.waiter is not None and self.waiter.request_id == item.request_id:
            self.waiter = None  # it may still lack something else, but holds nobody back for an adapter
        if not self._slots.is_free(item.kind):
            return Refusal.SEQUENCE_SLOTS
        if not self._take_blocks(item, request):
            return Refusal.KV_BLOCKS
        if self._buffer is not None and not self._buffer.take(request):
            return Refusal.POOLING_BUFFER
        self._slots.take(item.kind)
        self._admitted.append(request)
        self._watermark = self._kv.watermark_blocks
        if adapter:
            self._adapters.add(adapter)
            waiter = self._waiter_before(item)
            if waiter is not None:
                waiter.overtaken += 1
        return None

    def spare_tokens(self) -> int:
        """Tokens to plan beyond the budget, for what cached prefixes of those admitted leave unused."""
        return self._budget if any(map(self._prefixes.may_hit, self._admitted)) else 0

    def has_adapter_slot(self, item: WorkItem, adapter: int) -> bool:
        """Whether a waiting request of this adapter could start; if not, it is passed over in this step."""
        is_used = adapter in self._adapters
        waiter = self._waiter_before(item)
        if waiter is not None:
            has_slot = is_used and waiter.overtaken < self._max_overtaken
        else:
            has_slot = is_used or len(self._adapters) < self._max_adapters
            if not has_slot and (self.waiter is None or item.order < self.waiter.order):
                self.waiter = AdapterWaiter(item.request_id, item.order)
        if not has_slot:
            self.passed_over[item.kind] = Refusal.ADAPTER_SLOTS
        return has_slot

    def _waiter_before(self, item: WorkItem) -> AdapterWaiter | None:
        return self.waiter if self.waiter is not None and item.order > self.waiter.order else None

    def _take_blocks(self, item: WorkItem, request: Request) -> bool:
        tokens = min(request.num_tokens if self._whole_prompt else item.remaining, self._max_model_len)
        needed = self._prefixes.blocks_of(tokens)
        if needed is None or needed + self._watermark > self._free_blocks:
            needed = self._blocks(item, tokens, self._kv.empty_kv_cache_blocks, 0)
        if needed + self._watermark > self._free_blocks:
            # Only when memory is short is a cached prefix worth a second look-up.
            hits, cached, _ = self._kv.get_computed_blocks(request)
            needed = self._blocks(item, tokens, hits, cached)
            if needed + self._watermark > self._free_blocks:
                return False
        self._free_blocks -= needed
        return True

    def _blocks(self, item: WorkItem, tokens: int, hits: object, cached: int) -> int:
        request = self._waiting[item.request_id]
        needed: int = self._kv.coordinator.get_num_blocks_to_allocate(
            request_id=item.request_id,
            num_tokens=tokens,
            new_computed_blocks=hits.blocks,  # type: ignore[attr-defined]
            num_encoder_tokens=0,
            total_computed_tokens=cached,
            num_local_computed_tokens=cached,
            num_tokens_main_model=tokens,
            apply_admission_cap=True,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        return needed
