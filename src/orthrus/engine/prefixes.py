"""What the KV cache says about a waiting request's prompt without being asked block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orthrus.engine.compat import FullAttentionSpec

if TYPE_CHECKING:
    from orthrus.engine.compat import Request
    from orthrus.engine.scheduler import MixedScheduling

ONLY_GROUP = [0]


class Prefixes:
    """Two cheap answers for models with one kind of KV cache, full attention, and no KV connector.

    There a prompt needs a block for every `block_size` tokens, and a cached prefix begins with the first
    block (v1/core/single_type_kv_cache_manager.py, `FullAttentionManager`). Elsewhere neither holds, and
    `block_size` is 0.
    """

    def __init__(self, scheduler: MixedScheduling) -> None:
        groups = scheduler.kv_cache_config.kv_cache_groups
        kv = scheduler.kv_cache_manager
        self._is_plain = len(groups) == 1 and type(groups[0].kv_cache_spec) is FullAttentionSpec
        self.block_size: int = kv.coordinator.group_block_sizes[0] if self._is_plain else 0
        self._pool = kv.block_pool
        self._has_connector = scheduler.connector is not None
        self._is_caching: bool = scheduler.cache_config.enable_prefix_caching
        self.is_used = self._is_caching or self._has_connector

    def blocks_of(self, tokens: int) -> int | None:
        """KV blocks for `tokens` tokens of a request that holds none; None where the manager must say."""
        return -(-tokens // self.block_size) if self._is_plain else None

    def may_hit(self, request: Request) -> bool:
        """Whether part of the prompt may be cached; False is certain."""
        if self._has_connector:
            return True
        if not self._is_caching or request.num_computed_tokens:
            return False
        if not self._is_plain:
            return True
        hashes = request.block_hashes
        return bool(hashes) and self._pool.get_cached_block(hashes[0], ONLY_GROUP) is not None
