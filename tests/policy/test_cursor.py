"""A refused head closes its kind for the step, unless only its adapter has no slot."""

import pytest
from policy_harness import queue

from orthrus.policy.cursor import Cursor
from orthrus.policy.work import Chunk, Kind, Refusal


def drain(cursor: Cursor, limit: int = 100) -> list[Chunk]:
    chunks: list[Chunk] = []
    while cursor.item is not None:
        cursor.take(limit, False, chunks)
    return chunks


@pytest.mark.parametrize("why", sorted(set(Refusal) - {Refusal.ADAPTER_SLOTS}))
def test_a_refused_head_closes_its_kind(why: Refusal):
    asked = []

    def admit(item):
        asked.append(item.request_id)
        return why if item.request_id == "embed-1" else None

    cursor = Cursor(Kind.EMBED, queue(Kind.EMBED, 5, 6, 7), admit)
    assert drain(cursor) == [Chunk("embed-0", Kind.EMBED, 5)]
    assert (cursor.refusal, asked) == (why, ["embed-0", "embed-1"])


def test_a_head_without_an_adapter_slot_is_passed_over():
    def admit(item):
        return Refusal.ADAPTER_SLOTS if item.request_id in {"prefill-0", "prefill-2"} else None

    cursor = Cursor(Kind.PREFILL, queue(Kind.PREFILL, 5, 6, 7, 8), admit)
    assert drain(cursor) == [Chunk("prefill-1", Kind.PREFILL, 6), Chunk("prefill-3", Kind.PREFILL, 8)]
    assert cursor.refusal is Refusal.ADAPTER_SLOTS
