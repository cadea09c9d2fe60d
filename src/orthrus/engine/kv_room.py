"""The KV blocks that waiting requests may take in one step, and who has waited for them longest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orthrus.engine.overtaking import Overtaken
from orthrus.engine.prefixes import Prefixes

if TYPE_CHECKING:
    from orthrus.engine.compat import Request
    from orthrus.engine.scheduler import MixedScheduling
    from orthrus.policy.work import WorkItem


class KvRoom:
    """Answers with vLLM's own arithmetic (v1/core/kv_cache_manager.py, `allocate_slots`), before it runs.

    A long prompt that needs more blocks than are free closes its own kind only, so the other kind could keep
    the cache full for ever. Once as many requests as the batch has rows have started behind it, later ones
    wait until it fits.
    """

    def __init__(self, scheduler: MixedScheduling, prefixes: Prefixes) -> None:
        self._scheduler = scheduler
        self._kv = scheduler.kv_cache_manager
        self._prefixes = prefixes
        self._whole_prompt = scheduler.scheduler_reserve_full_isl
        self._max_model_len = scheduler.max_model_len
        self._waiter = Overtaken(scheduler.real_waiting.requests, scheduler.max_num_running_reqs)
        self._free = self._watermark = 0
        self._needed = 0
        self._running_bound = 0

    def begin_step(self) -> None:
        """Count anew what is free."""
        self._free = self._kv.block_pool.get_num_free_blocks()
        self._watermark = self._kv.watermark_blocks if self._scheduler.running else 0
        # No fewer blocks than the running requests can take in this step, without asking each of them.
        size = self._prefixes.block_size
        running = len(self._scheduler.running)
        self._running_bound = running + self._scheduler.max_num_scheduled_tokens // size if size else 0
        self._waiter.begin_step()

    def has(self, item: WorkItem, request: Request) -> bool:
        """Whether the request could start; if so, `take` must follow before the next question."""
        waiter = self._waiter
        if waiter.is_before(item) and waiter.is_due and self._scheduler.running:
            return False  # with nothing running, nothing would ever give the other one room
        self._needed = self._blocks_for(item, request)
        if self._needed <= self._free - self._watermark:
            return True
        waiter.lacks(item)
        return False

    def take(self, item: WorkItem) -> None:
        """The request starts: its blocks count as taken for the rest of the step."""
        self._free -= self._needed
        self._watermark = self._kv.watermark_blocks
        if self._waiter.request_id is not None:
            self._waiter.has_its_turn(item)
            self._waiter.starts(item)

    def _blocks_for(self, item: WorkItem, request: Request) -> int:
        tokens = min(request.num_tokens if self._whole_prompt else item.remaining, self._max_model_len)
        needed = self._prefixes.blocks_of(tokens)
        room = self._free - self._watermark
        if needed is not None and needed <= room - self._running_bound:
            return needed
        if self._running_bound:
            self._count_running()
        room = self._free - self._watermark
        if needed is None or needed > room:
            needed = self._blocks(request, tokens, self._kv.empty_kv_cache_blocks, 0)
        if needed > room:
            # Only when memory is short is a cached prefix worth a second look-up.
            hits, cached, _ = self._kv.get_computed_blocks(request)
            needed = self._blocks(request, tokens, hits, cached)
        return needed

    def _blocks(self, request: Request, tokens: int, hits: object, cached: int) -> int:
        needed: int = self._kv.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
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

    def _count_running(self) -> None:
        """Take off what running requests, which vLLM serves first, need in this step."""
        self._running_bound = 0
        size = self._prefixes.block_size
        prompt_tokens = self._scheduler.max_num_scheduled_tokens
        for request in self._scheduler.running:
            held = request.num_computed_tokens
            tokens = request.num_tokens - held
            if tokens > 1:
                tokens = min(tokens, prompt_tokens)
                prompt_tokens -= tokens
            else:
                tokens = 1
            # More than are in use where the step that took them was discarded.
            blocks = len(self._kv.get_block_ids(request.request_id)[0])
            self._free -= max(0, -(-(held + tokens) // size) - blocks)
