"""The running requests that still have prompt tokens to compute, followed from step to step.

vLLM's `running` holds hundreds of decodes beside a few of these, and asking each of them anew in every step
costs more than planning the step does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orthrus.engine.compat import RequestStatus

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

    def saw(self, output: SchedulerOutput, requests: Mapping[str, Request]) -> None:
        """Take up what this step started: new requests, and preempted ones that came back."""
        if self._known is None:
            return
        self._known.extend(requests[new.req_id] for new in output.scheduled_new_reqs)
        self._known.extend(requests[req_id] for req_id in output.scheduled_cached_reqs.resumed_req_ids)

    def forget(self) -> None:
        """A step ran that `saw` is not told of: the next one scans again."""
        self._known = None
