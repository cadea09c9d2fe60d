"""Requests that later ones pass, because what they need is not free: how often, so that it can be bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container

    from orthrus.policy.work import WorkItem


class Overtaken:
    """The earliest request that lacks one resource, and how many later ones have started since.

    `waiting` holds the ids of all waiting requests; `limit` of later ones may start before it.
    """

    __slots__ = ("_limit", "_order", "_passed_by", "_waiting", "request_id")

    def __init__(self, waiting: Container[str], limit: int) -> None:
        self.request_id: str | None = None
        self._order: Any = None
        self._passed_by = 0
        self._waiting = waiting
        self._limit = limit

    def begin_step(self) -> None:
        """Forget a request that has left the queue."""
        if self.request_id is not None and self.request_id not in self._waiting:
            self.request_id = None

    def is_before(self, item: WorkItem) -> bool:
        """Whether a request lacks the resource that came earlier than this one."""
        return self.request_id is not None and item.order > self._order

    @property
    def is_due(self) -> bool:
        """Whether the request that lacks it has been passed as often as may be."""
        return self._passed_by >= self._limit

    def lacks(self, item: WorkItem) -> None:
        """This request lacks the resource: it is the one to count for, unless an earlier one is."""
        if self.request_id is None or item.order < self._order:
            self.request_id, self._order, self._passed_by = item.request_id, item.order, 0

    def has_its_turn(self, item: WorkItem) -> None:
        """This request can have the resource: if it is the one counted for, nobody is."""
        if self.request_id == item.request_id:
            self.request_id = None

    def starts(self, item: WorkItem) -> None:
        """This request starts: it passes an earlier one."""
        if self.is_before(item):
            self._passed_by += 1
