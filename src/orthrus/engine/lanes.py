"""The requests of one kind: those in flight, and those that wait, in one ordered lane for each adapter.

vLLM passes over a request whose adapter has no slot and goes on with those behind it
(v1/core/sched/scheduler.py, the check of `max_loras` in the waiting loop). Here a lane is passed over as a
whole, so that thousands of requests for one adapter cost no more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Any

from orthrus.policy.queues import KindQueue
from orthrus.policy.work import Kind, WorkItem

IsOpen = Callable[[WorkItem, int], bool]
"""Whether a waiting request could start now as far as its adapter (0: none) goes."""


class Lanes:
    """Waiting requests of one kind by adapter (0: none). Orders of different requests must differ.

    `remaining` is the sum of their prompt tokens, a running total.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.remaining = 0
        self._lanes: dict[int, KindQueue] = {}
        self._adapters: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._adapters)

    def add(self, request_id: str, remaining: int, order: Any, adapter: int) -> None:
        """Queue a request with `remaining` (at least 1) tokens to compute; ValueError if it is queued."""
        if request_id in self._adapters:
            raise ValueError(f"request {request_id!r} is already in the {self.kind} queue")
        lane = self._lanes.get(adapter)
        if lane is None:
            lane = self._lanes[adapter] = KindQueue(self.kind)
        lane.add(request_id, remaining, order)
        self._adapters[request_id] = adapter
        self.remaining += remaining

    def remove(self, request_id: str) -> None:
        """Take a request out; KeyError if it is not queued."""
        adapter = self._adapters.pop(request_id)
        lane = self._lanes[adapter]
        self.remaining -= lane.remove(request_id).remaining
        if not lane:
            del self._lanes[adapter]

    def first(self) -> str | None:
        """The request that comes first in order, whatever its adapter."""
        heads = [item for lane in self._lanes.values() if (item := lane.first()) is not None]
        return min(heads, key=lambda item: item.order).request_id if heads else None

    def startable(self, is_open: IsOpen) -> Iterator[WorkItem]:
        """The requests in order, lazily; a lane that `is_open` refuses when its turn comes is left out."""
        if len(self._lanes) == 1 and 0 in self._lanes:
            return self._lanes[0].waiting()
        return self._merged(is_open)

    def _merged(self, is_open: IsOpen) -> Iterator[WorkItem]:
        heads: list[tuple[Any, WorkItem, int, Iterator[WorkItem]]] = []
        for adapter, lane in self._lanes.items():
            items = iter(lane)
            item = next(items)
            heads.append((item.order, item, adapter, items))
        heapify(heads)
        while heads:
            _, item, adapter, items = heads[0]
            if adapter and not is_open(item, adapter):
                heappop(heads)
                continue
            yield item
            following = next(items, None)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (following.order, following, adapter, items))


class InFlightThenWaiting:
    """The WorkQueue of one kind: requests in flight, then the waiting ones that `is_open` lets start.

    `remaining` counts all of them, those left out too: they are work, and will be this kind's to do.
    """

    def __init__(self, in_flight: list[WorkItem], waiting: Lanes, is_open: IsOpen) -> None:
        if len(in_flight) > 1:
            in_flight.sort(key=lambda item: item.order)
        self._in_flight = in_flight
        self._waiting = waiting
        self._is_open = is_open
        self.remaining = waiting.remaining
        for item in in_flight:
            self.remaining += item.remaining

    def __iter__(self) -> Iterator[WorkItem]:
        return chain(self._in_flight, self._waiting.startable(self._is_open))
