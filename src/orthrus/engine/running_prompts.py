"""The running requests that still have prompt tokens to compute, followed from step to step.

vLLM's `running` holds hundreds of decodes beside a few of these, and asking each of them anew in every step
costs more than planning the step does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orthrus.engine.compat import RequestStatus
from orthrus.engine.waiting import kind_of
from orthrus.policy.work import Kind, WorkItem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orthrus.engine.compat import Request, SchedulerOutput


class RunningPrompts:
    """Prefills and embeddings that run, found by one scan and then kept by what each step starts."""

    def __init__(self) -> None:
        self._known: list[Request] | None = None

    def current(self, running: Sequence[Request]) -> list[Request]:
        """Those among `running` with prompt tokens left, and embeddings whose vector is not out yet."""
        candidates = running if self._known is None else self._known
        self._known = [
            r
            for r in candidates
            if (r.is_prefill_chunk or r.pooling_params is not None) and r.status is RequestStatus.RUNNING
        ]
        return self._known

    def work(
        self, running: Sequence[Request], orders: Mapping[str, Any]
    ) -> tuple[dict[Kind, list[WorkItem]], int, int]:
        """Those with tokens left to compute, by kind, and how many of all `running` prefill and embed.

        `orders` holds each request's rank of arrival.
        """
        in_flight: dict[Kind, list[WorkItem]] = {Kind.EMBED: [], Kind.PREFILL: []}
        prompts = self.current(running)
        embeddings = 0
        for request in prompts:
            kind = kind_of(request)
            embeddings += kind is Kind.EMBED
            left = request.num_tokens - request.num_computed_tokens
            if left > 0:
                request_id = request.request_id
                in_flight[kind].append(WorkItem(request_id, kind, left, orders[request_id], True))
        return in_flight, len(prompts) - embeddings, embeddings

    def saw(self, output: SchedulerOutput, requests: Mapping[str, Request]) -> None:
        """Take up what this step started and what has not ended since: new and resumed requests."""
        if self._known is None:
            return
        started = [new.req_id for new in output.scheduled_new_reqs]
        started += output.scheduled_cached_reqs.resumed_req_ids
        self._known += [requests[req_id] for req_id in started if req_id in requests]

    def ended(self, request: Request) -> None:
        """Let go of a request now: the next step may be long in coming."""
        if self._known is not None and request in self._known:
            self._known.remove(request)

    def forget(self) -> None:
        """A step ran that `saw` is not told of: the next one scans again."""
        self._known = None
