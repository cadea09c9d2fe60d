"""The head of one kind's queue during one step, shared by all policies."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from orthrus.policy.work import Chunk, Kind, Refusal, WorkItem, WorkQueue


class Cursor:
    """Walks one queue in order, asks admission once for each waiting request, and grants chunks.

    `item` is the head that the next opportunity would serve, None once the kind is closed for this step: its
    queue is used up, a head was refused (`refusal`), or its `allowance` of tokens is spent. A head without an
    adapter slot is passed over and closes nothing, as in vLLM. `left` is what
    the head still has to compute after the chunks granted so far. `cap` bounds one opportunity.
    """

    __slots__ = ("_admit", "_admitted", "_items", "allowance", "cap", "item", "kind", "left", "refusal")

    def __init__(
        self,
        kind: Kind,
        queue: WorkQueue,
        admit: Callable[[WorkItem], Refusal | None],
        cap: int = sys.maxsize,
        allowance: int = sys.maxsize,
    ) -> None:
        self.kind = kind
        self.cap = cap
        self.allowance = allowance
        self.refusal: Refusal | None = None
        self.item: WorkItem | None = None
        self.left = 0
        self._admit = admit
        self._admitted = False
        self._items = iter(queue)
        self.skip()

    def rank(self) -> tuple[bool, Any]:
        """Sort key of the head among kinds: in flight first, then order of arrival. The kind must be open."""
        item = self.item
        assert item is not None
        return (not item.in_flight, item.order)

    def skip(self) -> None:
        """Make the next request of the queue the head."""
        for item in self._items:
            if item.remaining > 0:
                self.item = item
                self.left = item.remaining
                self._admitted = item.in_flight
                return
        self.item = None

    def take(self, limit: int, spare: bool, chunks: list[Chunk]) -> int:
        """Grant the head one chunk of at most `limit` (>= 1) tokens; 0 if its admission is refused.

        A head with tokens left stays the head. Must not be called on a closed kind.
        """
        item = self.item
        assert item is not None
        if not self._admitted:
            refusal = self._admit(item)
            if refusal is not None:
                self.refusal = refusal
                if refusal is Refusal.ADAPTER_SLOTS:
                    self.skip()  # those behind may need an adapter in use, or none
                else:
                    self.item = None
                return 0
            self._admitted = True
        tokens = min(self.left, limit, self.cap, self.allowance)
        chunks.append(Chunk(item.request_id, self.kind, tokens, spare))
        self.left -= tokens
        if self.left == 0:
            self.skip()
        self.allowance -= tokens
        if self.allowance == 0:
            self.item = None
        return tokens

    def keep_waiting_only(self) -> None:
        """Before spare tokens are given out: close the kind if its head was in flight before this step."""
        if self.item is not None and self.item.in_flight:
            self.item = None
