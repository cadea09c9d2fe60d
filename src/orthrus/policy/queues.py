"""The requests of one kind, in order, with running totals; the engine and the simulator both use it."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from orthrus.policy.blocks import Entry, SortedBlocks
from orthrus.policy.work import Kind, WorkItem

_ID = itemgetter(2)
"""The request id of an Entry."""


class KindQueue:
    """A `WorkQueue`: requests in flight first, then the waiting ones, each by `order`, then as added.

    Every change costs one binary search and one small block, whatever the queue holds; totals are kept,
    never summed up. `order` may be anything comparable: a counter for first come first served, a tuple
    beginning with the priority for priority scheduling. Changing the queue while it is iterated raises
    RuntimeError at the iterator's next step.
    """

    __slots__ = ("_changes", "_entries", "_flying", "_items", "_next", "_remaining", "_waiting", "kind")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._items: dict[str, WorkItem] = {}
        self._entries: dict[str, Entry] = {}
        self._flying = SortedBlocks()
        self._waiting = SortedBlocks()
        self._remaining = 0
        self._next = 0
        self._changes = 0

    @property
    def remaining(self) -> int:
        """Tokens still to compute over all requests, in flight and waiting."""
        return self._remaining

    @property
    def waiting_count(self) -> int:
        """Requests that hold no slot yet."""
        return len(self._waiting)

    @property
    def in_flight_count(self) -> int:
        """Requests that hold a slot and still have prompt tokens to compute."""
        return len(self._flying)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._items

    def __iter__(self) -> Iterator[WorkItem]:
        items = self._items
        changes = self._changes
        for section in (self._flying, self._waiting):
            for entry in section:
                yield items[entry[2]]
                if self._changes != changes:
                    raise RuntimeError(f"the {self.kind} queue was changed while it was iterated")

    def get(self, request_id: str) -> WorkItem:
        """The request as it stands; KeyError if it is not queued."""
        try:
            return self._items[request_id]
        except KeyError:
            raise KeyError(f"request {request_id!r} is not in the {self.kind} queue") from None

    def first(self) -> WorkItem | None:
        """The request that iteration would begin with."""
        entry = self._flying.first() or self._waiting.first()
        return self._items[entry[2]] if entry is not None else None

    def waiting(self) -> Iterator[WorkItem]:
        """The waiting requests in order, lazily."""
        return map(self._items.__getitem__, map(_ID, self._waiting))

    def add(self, request_id: str, remaining: int, order: Any, *, in_flight: bool = False) -> None:
        """Queue a request with `remaining` (at least 1) tokens to compute; ValueError if already queued."""
        if request_id in self._items:
            raise ValueError(f"request {request_id!r} is already in the {self.kind} queue")
        self._check(request_id, remaining)
        entry = (order, self._next, request_id)
        (self._flying if in_flight else self._waiting).add(entry)  # first: an incomparable order raises here
        self._next += 1
        self._entries[request_id] = entry
        self._items[request_id] = WorkItem(request_id, self.kind, remaining, order, in_flight)
        self._remaining += remaining
        self._changes += 1

    def remove(self, request_id: str) -> WorkItem:
        """Take a request out (finished, aborted, or gone to decode) and return it as it stood."""
        item = self.get(request_id)
        (self._flying if item.in_flight else self._waiting).remove(self._entries.pop(request_id))
        del self._items[request_id]
        self._remaining -= item.remaining
        self._changes += 1
        return item

    def update(self, request_id: str, remaining: int) -> None:
        """Set the tokens still to compute (at least 1: a request with none left is to be removed)."""
        item = self.get(request_id)
        self._check(request_id, remaining)
        self._replace(item, remaining, item.in_flight)

    def start(self, request_id: str) -> None:
        """A waiting request got its slot: it moves to those in flight. ValueError if it is there already."""
        item = self.get(request_id)
        if item.in_flight:
            raise ValueError(f"request {request_id!r} of the {self.kind} queue is already in flight")
        entry = self._entries[request_id]
        self._waiting.remove(entry)
        self._flying.add(entry)
        self._replace(item, item.remaining, True)

    def preempt(self, request_id: str, remaining: int) -> None:
        """A request in flight lost its slot: it waits again, at its old place in the order.

        `remaining` is what it has to compute when it comes back, usually the whole prompt. ValueError if it
        was not in flight.
        """
        item = self.get(request_id)
        if not item.in_flight:
            raise ValueError(f"request {request_id!r} of the {self.kind} queue is not in flight")
        self._check(request_id, remaining)
        entry = self._entries[request_id]
        self._flying.remove(entry)
        self._waiting.add(entry)
        self._replace(item, remaining, False)

    def _replace(self, item: WorkItem, remaining: int, in_flight: bool) -> None:
        self._items[item.request_id] = WorkItem(item.request_id, self.kind, remaining, item.order, in_flight)
        self._remaining += remaining - item.remaining
        self._changes += 1

    def _check(self, request_id: str, remaining: int) -> None:
        if remaining < 1:
            raise ValueError(
                f"{self.kind} request {request_id!r}: remaining is {remaining}, must be at least 1"
            )
