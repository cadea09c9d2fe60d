"""Whether the head of a kind can start in this step: slots, adapters and KV blocks, asked per kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orthrus.engine.buffer_room import BufferRoom
from orthrus.engine.slots import SequenceSlots
from orthrus.policy.work import Refusal, WorkItem

if TYPE_CHECKING:
    from orthrus.engine.scheduler import MixedScheduling
    from orthrus.engine.waiting import WaitingByKind


@dataclass(frozen=True, slots=True)
class AdapterWaiter:
    """The earliest request that found all adapter slots taken: its place in the order, and its adapter."""

    request_id: str
    order: Any
    adapter: int


class Admission:
    """The `admit` of one step's StepView; what it grants counts as taken for the rest of the step.

    It answers before vLLM's `schedule()` runs, with the same arithmetic (v1/core/sched/scheduler.py, the
    waiting loop; v1/core/kv_cache_manager.py, `allocate_slots`), because there a head that does not
    fit ends the loop for both kinds. `adapters` are those of running requests. A request that waits
    for an adapter slot since an earlier step (`waiter`) lets no later request take up another adapter:
    else the two kinds could keep one adapter busy between them for ever.
    """

    def __init__(
        self,
        scheduler: MixedScheduling,
        waiting: WaitingByKind,
        adapters: set[int],
        waiter: AdapterWaiter | None = None,
    ) -> None:
        self.waiter = waiter if waiter is not None and waiter.request_id in waiting else None
        self._waiting = waiting
        self._kv = scheduler.kv_cache_manager
        self._whole_prompt = scheduler.scheduler_reserve_full_isl
        self._max_model_len = scheduler.max_model_len
        self._slots = SequenceSlots(scheduler)
        self._adapters = adapters
        self._max_adapters = scheduler.lora_config.max_loras if scheduler.lora_config else 0
        self._free_blocks = self._kv.block_pool.get_num_free_blocks()
        self._watermark = self._kv.watermark_blocks if scheduler.running else 0
        self._buffer = BufferRoom(scheduler.settings, scheduler.running)

    def __call__(self, item: WorkItem) -> Refusal | None:
        request = self._waiting[item.request_id]
        if not self._slots.is_free(item.kind):
            return Refusal.SEQUENCE_SLOTS
        adapter = request.lora_request.lora_int_id if request.lora_request else 0
        if adapter and not self._has_adapter_slot(item, adapter):
            return Refusal.ADAPTER_SLOTS
        if not self._take_blocks(item):
            return Refusal.KV_BLOCKS
        if not self._buffer.take(request):
            return Refusal.POOLING_BUFFER
        self._slots.take(item.kind)
        self._watermark = self._kv.watermark_blocks
        if adapter:
            self._adapters.add(adapter)
        return None

    def _has_adapter_slot(self, item: WorkItem, adapter: int) -> bool:
        waiter = self.waiter
        if waiter is not None and adapter != waiter.adapter and item.order > waiter.order:
            return False
        if adapter in self._adapters or len(self._adapters) < self._max_adapters:
            return True
        if waiter is None or item.order < waiter.order:
            self.waiter = AdapterWaiter(item.request_id, item.order, adapter)
        return False

    def _take_blocks(self, item: WorkItem) -> bool:
        request = self._waiting[item.request_id]
        tokens = min(request.num_tokens if self._whole_prompt else item.remaining, self._max_model_len)
        hits = self._kv.empty_kv_cache_blocks
        cached = 0
        needed = self._blocks(item, tokens, hits, cached)
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
