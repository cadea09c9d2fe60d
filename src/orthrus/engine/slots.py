"""Sequence slots per kind: generations keep stock vLLM's number, embeddings have a few more of their own.

A generation holds its slot for its whole decode, an embedding for a few steps. In one common pool a full
house of long generations would keep every embedding waiting for one of them to end (paper, table 10 and
section 4.1: no kind waits for the other). So `--max-num-seqs` bounds the generations, as it does in stock
vLLM, and the batch has `embed_slots` rows beyond it that only embeddings use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orthrus.policy.work import Kind

if TYPE_CHECKING:
    from orthrus.engine.scheduler import MixedScheduling

SHARE = 8
LEAST = 2


def default_embed_slots(max_num_seqs: int) -> int:
    """An eighth of the generations' slots, at least two: an embedding stays only for its few chunks."""
    return max(LEAST, max_num_seqs // SHARE)


class SequenceSlots:
    """The slots still free in one step. Embeddings may take any, generations only up to their own number."""

    def __init__(self, scheduler: MixedScheduling, running_embeddings: int) -> None:
        # Streaming sessions and requests that hold KV blocks come back as generations, ahead of the others.
        held = scheduler.num_waiting_for_streaming_input + len(scheduler.kv_holding_waiting)
        self._all = scheduler.max_num_running_reqs - len(scheduler.running) - held
        self._generations = scheduler.generation_slots - (len(scheduler.running) - running_embeddings) - held

    def is_free(self, kind: Kind) -> bool:
        """Whether a request of this kind can start."""
        return self._all > 0 and (kind is Kind.EMBED or self._generations > 0)

    def take(self, kind: Kind) -> None:
        """Count a slot as taken for the rest of the step."""
        self._all -= 1
        if kind is not Kind.EMBED:
            self._generations -= 1
