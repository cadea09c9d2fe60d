"""Sequence slots per kind: generations keep stock vLLM's number, embeddings have a few more of their own.

A generation holds its slot for its whole decode, an embedding for a few steps. In one common pool a full
house of long generations would keep every embedding waiting for one of them to end (paper, table 10 and
section 4.1: no kind waits for the other). So `--max-num-seqs` bounds the generations, as it does in stock
vLLM, and the batch has `embed_slots` rows beyond it that only embeddings use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orthrus.engine.scheduler import MixedScheduling

SHARE = 8
LEAST = 2


def default_embed_slots(max_num_seqs: int) -> int:
    """An eighth of the generations' slots, at least two: an embedding stays only for its few chunks."""
    return max(LEAST, max_num_seqs // SHARE)


def free_slots(scheduler: MixedScheduling, running_embeddings: int) -> tuple[int, int]:
    """Slots still free: all of them, which embeddings may take, and those that generations may take."""
    running = len(scheduler.running)
    # Streaming sessions and requests that hold KV blocks come back as generations, ahead of the others.
    held = scheduler.num_waiting_for_streaming_input + len(scheduler.kv_holding_waiting)
    return (
        scheduler.max_num_running_reqs - running - held,
        scheduler.generation_slots - (running - running_embeddings) - held,
    )
