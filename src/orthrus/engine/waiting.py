"""The scheduler's waiting queue: ordered lanes per kind, with blocked requests set apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from orthrus.engine.compat import RequestQueue, RequestStatus, SchedulingPolicy
from orthrus.engine.lanes import Lanes
from orthrus.policy.work import Kind

if TYPE_CHECKING:
    from orthrus.engine.compat import Request

BLOCKED = frozenset(
    {
        RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
        RequestStatus.WAITING_FOR_REMOTE_KVS,
        RequestStatus.WAITING_FOR_STREAMING_REQ,
    }
)


def kind_of(request: Request) -> Kind:
    """EMBED for a pooling request; PREFILL for any other (a waiting generation starts with its prefill)."""
    return Kind.EMBED if request.pooling_params is not None else Kind.PREFILL


def adapter_of(request: Request) -> int:
    """The number of the request's LoRA adapter; 0 for the base model."""
    return request.lora_request.lora_int_id if request.lora_request is not None else 0


def _max_output_tokens(request: Request) -> int:
    return request.max_tokens if request.pooling_params is None else 0


class WaitingByKind(RequestQueue):
    """vLLM's waiting queue (v1/core/sched/request_queue.py) split by kind.

    Without embeddings it behaves as vLLM's own: `peek` and `pop` serve generations in order of arrival, or
    of priority. A request keeps the order of its first arrival, so one that comes back (preempted, or
    skipped for its adapter) takes its old place again. Blocked requests wait apart until `promote`
    finds them ready; `requests` are the others, by id.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.kinds = {kind: Lanes(kind) for kind in (Kind.EMBED, Kind.PREFILL)}
        self.max_output_tokens = 0
        self.orders: dict[str, tuple[float, ...]] = {}
        self._by_priority = policy == SchedulingPolicy.PRIORITY
        self._arrivals = count()
        self.requests: dict[str, Request] = {}
        self._blocked: dict[str, Request] = {}

    def add_request(self, request: Request) -> None:
        request_id = request.request_id
        if request_id not in self.orders:
            arrival = (next(self._arrivals),)
            self.orders[request_id] = (
                (request.priority, request.arrival_time, *arrival) if self._by_priority else arrival
            )
        if request.status in BLOCKED:
            self._blocked[request_id] = request
            return
        self.requests[request_id] = request
        self.max_output_tokens += _max_output_tokens(request)
        self.kinds[kind_of(request)].add(
            request_id,
            request.num_tokens - request.num_computed_tokens,
            self.orders[request_id],
            adapter_of(request),
        )

    def promote(self, is_ready: Callable[[Request], bool], deferred: set[Request]) -> None:
        """Move blocked requests that `is_ready` lets pass into their queue (and out of `deferred`)."""
        if not self._blocked:
            return
        for request in [r for r in self._blocked.values() if is_ready(r)]:
            del self._blocked[request.request_id]
            deferred.discard(request)
            self.add_request(request)

    def forget(self, request_id: str) -> None:
        """Drop the remembered order of a finished request."""
        self.orders.pop(request_id, None)

    def remove_request(self, request: Request) -> None:
        request_id = request.request_id
        if self._blocked.pop(request_id, None) is None and self.requests.pop(request_id, None) is not None:
            self.kinds[kind_of(request)].remove(request_id)
            self.max_output_tokens -= _max_output_tokens(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.remove_request(request)

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> Request:
        first = self.first_generation()
        if first is None:
            raise IndexError("peek from an empty queue")
        return first

    def first_generation(self) -> Request | None:
        """The generation that comes first in order."""
        first = self.kinds[Kind.PREFILL].first()
        return self.requests[first] if first is not None else None

    def pop_request(self) -> Request:
        request = self.peek_request()
        self.remove_request(request)
        return request

    def __bool__(self) -> bool:
        return len(self.kinds[Kind.PREFILL]) > 0

    def __len__(self) -> int:
        return len(self.requests) + len(self._blocked)

    def __iter__(self) -> Iterator[Request]:
        return chain(self._blocked.values(), self.requests.values())


class StepQueue(RequestQueue):
    """What vLLM's `schedule()` sees as its waiting queue in one step: the planned requests, in plan order."""

    def __init__(self, waiting: WaitingByKind, planned: Iterable[Request]) -> None:
        self._waiting = waiting
        self._planned = deque(planned)

    def peek_request(self) -> Request:
        return self._planned[0]

    def pop_request(self) -> Request:
        request = self._planned.popleft()
        self._waiting.remove_request(request)
        return request

    def __bool__(self) -> bool:
        return bool(self._planned)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    def add_request(self, request: Request) -> None:
        self._waiting.add_request(request)

    def prepend_request(self, request: Request) -> None:
        self._waiting.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        self._waiting.prepend_requests(requests)

    def remove_request(self, request: Request) -> None:
        self.remove_requests([request])

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone: set[Any] = set(requests)
        self._planned = deque(r for r in self._planned if r not in gone)
        self._waiting.remove_requests(gone)
