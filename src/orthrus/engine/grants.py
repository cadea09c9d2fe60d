"""What the plan of one step allows each request, and what is left of it while vLLM carries it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orthrus.policy.work import Kind, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping


class StepGrants:
    """Tokens by request id. Spare ones count only as far as cached prefixes leave planned ones unused.

    So a request never takes with its spare tokens what the plan gives to a later one.
    """

    def __init__(self, plan: Plan) -> None:
        self.run_decodes = plan.decode
        self.kinds: dict[str, Kind] = {}
        self._planned: dict[str, int] = {}
        self._spare: dict[str, int] = {}
        self._unused = 0
        for chunk in plan.chunks:
            self.kinds[chunk.request_id] = chunk.kind
            tokens = self._spare if chunk.spare else self._planned
            tokens[chunk.request_id] = tokens.get(chunk.request_id, 0) + chunk.tokens

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.kinds

    def is_planned(self, request_id: str) -> bool:
        """Whether the request has more than spare tokens."""
        return request_id in self._planned

    def spend(self, request_id: str, wanted: int) -> int:
        """How many of its `wanted` tokens a granted request gets. Asked once for each, in plan order."""
        planned = self._planned.get(request_id, 0)
        if wanted <= planned:
            self._unused += planned - wanted
            return wanted
        extra = min(wanted - planned, self._spare.get(request_id, 0), self._unused)
        self._unused -= extra
        return planned + extra

    def embeddings(self, scheduled: Mapping[str, int]) -> list[str]:
        """The granted embeddings among those `scheduled` (by request id)."""
        return [
            request_id
            for request_id, kind in self.kinds.items()
            if kind is Kind.EMBED and request_id in scheduled
        ]

    def by_kind(self, scheduled: Mapping[str, int]) -> dict[Kind, int]:
        """Tokens of embeddings and of prefills among those `scheduled` (by request id)."""
        totals = {Kind.EMBED: 0, Kind.PREFILL: 0}
        for request_id, kind in self.kinds.items():
            totals[kind] += scheduled.get(request_id, 0)
        return totals
