"""Embeddings that start behind a cached prefix: the scheduler's decisions about kept pooling states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orthrus.engine.prefix_sums import PrefixSums, SumOrders
from orthrus.pooling.heads import Head

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orthrus.engine.compat import Request, SchedulerOutput, VllmConfig
    from orthrus.engine.config import OrthrusConfig
    from orthrus.engine.embedding import EmbeddingSpec
    from orthrus.engine.scheduler import MixedScheduling

ORDERS = "orthrus_sums"
"""The attribute of a SchedulerOutput that carries a step's SumOrders to the workers."""


def rows_of(vllm_config: VllmConfig, config: OrthrusConfig) -> int:
    """How many states of float32 [hidden_size] fit into the configured memory; 0 turns reuse off."""
    return int(config.prefix_sums_mib * 2**20) // (4 * vllm_config.model_config.get_hidden_size())


class PrefixReuse:
    """Which embeddings may read vLLM's prefix cache, how far, and what the workers keep for later.

    Works where KV blocks and block hashes have one size and no KV connector adds its own tokens; elsewhere,
    and with `prefix_sums_mib` 0, only the last head reads the cache.
    """

    def __init__(self, scheduler: MixedScheduling, config: OrthrusConfig) -> None:
        self._scheduler = scheduler
        rows = min(rows_of(scheduler.vllm_config, config), scheduler.cache_config.num_gpu_blocks)
        usable = (
            rows > 0
            and scheduler.cache_config.enable_prefix_caching
            and scheduler.connector is None
            and scheduler.hash_block_size == scheduler.block_size
            and len(scheduler.kv_cache_config.kv_cache_groups) == 1
        )
        self._sums = PrefixSums(rows, scheduler.block_size) if usable else None
        self._loads: dict[str, int] = {}

    def may_read_cache(self, spec: EmbeddingSpec) -> bool:
        """Whether cached KV blocks may stand in for a prefix of this embedding."""
        if spec.needs_every_token:
            return False
        return spec.head is Head.LAST or (self._sums is not None and spec.keeps_states)

    def shorten(self, request: Request, hit: tuple[Any, int, int, bool]) -> tuple[Any, int, int, bool]:
        """A prefix-cache hit of vLLM (blocks, tokens, …) cut back to the last boundary with a kept state."""
        blocks, tokens, junction, diverged = hit
        if not tokens:
            return hit
        head = self._scheduler.embeddings[request.request_id].head
        if head is Head.LAST:
            return hit
        kv = self._scheduler.kv_cache_manager
        found = None
        if self._sums is not None:
            found = self._sums.longest(head, request.block_hashes, tokens)
        if found is None:
            return kv.empty_kv_cache_blocks, 0, 0, False
        kept_tokens, row = found
        self._loads[request.request_id] = row
        if kept_tokens < tokens:
            blocks = kv.truncate_computed_blocks(blocks, kept_tokens)
        return blocks, kept_tokens, junction, diverged

    def attach_orders(self, output: SchedulerOutput, embeddings: Iterable[str]) -> None:
        """Tell the workers which states of `embeddings` to load and to keep in the step of `output`.

        Call once for each step after vLLM has scheduled it.
        """
        if self._sums is None:
            return
        requests, specs = self._scheduler.requests, self._scheduler.embeddings
        scheduled = output.num_scheduled_tokens
        orders = SumOrders()
        if self._loads:
            orders.loads = {req_id: row for req_id, row in self._loads.items() if req_id in scheduled}
            self._loads.clear()
        for request_id in embeddings:
            spec = specs[request_id]
            if spec.keeps_states:
                request = requests[request_id]
                end = request.num_computed_tokens
                start = end - scheduled[request_id]
                saved = self._sums.save(spec.head, request.block_hashes, start, end)
                if saved:
                    orders.saves[request_id] = saved
        if orders.loads or orders.saves:
            setattr(output, ORDERS, orders)
        self._sums.end_step()

    def take_back(self) -> None:
        """The step whose orders were attached last was discarded: it saved nothing."""
        if self._sums is not None:
            self._sums.take_back()

    def clear(self) -> None:
        """Forget all kept states, as vLLM forgets its cached blocks."""
        if self._sums is not None:
            self._sums.clear()
