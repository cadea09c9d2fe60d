"""Blocks of the KV cache that may still hold NaN, cleared before they are used again.

vLLM's CPU attention multiplies masked positions of a block by zero, and zero times NaN is NaN: a block that a
broken request has filled would break the next request that gets it. Nothing is cleared while no request
has broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orthrus.engine.compat import SchedulerOutput


def fresh_blocks(scheduler_output: SchedulerOutput, block_size: int) -> list[int]:
    """Ids of the blocks that a step's requests get to write (blocks with a cached prefix are left out)."""
    return list(_fresh(scheduler_output, block_size))


def _fresh(scheduler_output: SchedulerOutput, block_size: int) -> Iterator[int]:
    for new in scheduler_output.scheduled_new_reqs:
        yield from _behind_the_prefix(new.block_ids, new.num_computed_tokens, block_size)
    cached = scheduler_output.scheduled_cached_reqs
    for i, req_id in enumerate(cached.req_ids):
        blocks = cached.new_block_ids[i]
        if blocks is not None:
            skipped = cached.num_computed_tokens[i] if req_id in cached.resumed_req_ids else 0
            yield from _behind_the_prefix(blocks, skipped, block_size)


def _behind_the_prefix(groups: tuple[list[int], ...], computed: int, block_size: int) -> Iterator[int]:
    for blocks in groups:
        yield from blocks[-(-computed // block_size) :]
