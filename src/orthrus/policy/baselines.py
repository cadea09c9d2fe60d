"""The policies that the paper compares with: heterogeneous first come first served, and homogeneous steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import ClassVar

from orthrus.policy.cursor import Cursor
from orthrus.policy.options import PolicyOptions
from orthrus.policy.work import Chunk, Kind, Plan, StepView, WorkItem, totals_by_name


class FirstComeFirstServed:
    """Heterogeneous steps in order of arrival: work in flight first, then waiting requests, of both kinds.

    Each takes what it needs while the budget lasts. With `prefill_chunk` set a prefill takes at most that
    much before the requests behind it have had their turn; what is then left of the budget goes round again.
    """

    name: ClassVar[str] = "fcfs"
    uses: ClassVar[frozenset[str]] = frozenset({"prefill_chunk"})

    __slots__ = ("_prefill_cap", "_totals")

    def __init__(self, options: PolicyOptions | None = None) -> None:
        self._prefill_cap = (options or PolicyOptions()).prefill_chunk or sys.maxsize
        self._totals = dict.fromkeys(Kind, 0)

    def plan(self, view: StepView) -> Plan:
        """See `Policy.plan`."""
        plan = Plan()
        embed = Cursor(Kind.EMBED, view.embed, view.admit)
        prefill = Cursor(Kind.PREFILL, view.prefill, view.admit, self._prefill_cap)
        _fill_in_order(plan, (embed, prefill), view.budget, view.spare)
        return plan

    def settle(self, scheduled: Mapping[Kind, int]) -> None:
        """Only totals depend on what ran."""
        _count(self._totals, scheduled)

    def stand_by(self) -> None:
        """Nothing to forget."""

    def state(self) -> Mapping[str, float]:
        """Tokens run in planned steps, by kind."""
        return totals_by_name(self._totals)


class Homogeneous:
    """A step is all embedding or all generation (prefills, decodes); with work for both they take turns."""

    name: ClassVar[str] = "homogeneous"
    uses: ClassVar[frozenset[str]] = frozenset({"prefill_chunk"})

    __slots__ = ("_embed_ran", "_prefill_cap", "_totals")

    def __init__(self, options: PolicyOptions | None = None) -> None:
        self._prefill_cap = (options or PolicyOptions()).prefill_chunk or sys.maxsize
        self._embed_ran = True
        self._totals = dict.fromkeys(Kind, 0)

    def plan(self, view: StepView) -> Plan:
        """See `Policy.plan`. An embedding step holds the decodes back and uses their reservation too."""
        plan = Plan()
        generation_work = view.decode_tokens > 0 or view.prefill.remaining > 0
        if not (self._embed_ran and generation_work):
            self._embed_step(view, plan)
            if plan.chunks:
                return plan
        prefill = Cursor(Kind.PREFILL, view.prefill, view.admit, self._prefill_cap)
        _fill_in_order(plan, (prefill,), view.budget, view.spare)
        # Generation's turn, but its head is refused and nothing decodes: the step is not to be lost.
        if not plan.chunks and view.decode_tokens == 0 and Kind.EMBED not in plan.refused:
            self._embed_step(view, plan)
        return plan

    def settle(self, scheduled: Mapping[Kind, int]) -> None:
        """The next turn belongs to the kind that did not run; a turn that ran nothing is over as well."""
        _count(self._totals, scheduled)
        ran_anything = any(scheduled.values())
        self._embed_ran = scheduled.get(Kind.EMBED, 0) > 0 if ran_anything else not self._embed_ran

    def stand_by(self) -> None:
        """The turn stays whose it was."""

    def state(self) -> Mapping[str, float]:
        """Whose turn is next (0 generation, 1 embedding), and tokens run in planned steps, by kind."""
        return {"next_embed": float(not self._embed_ran), **totals_by_name(self._totals)}

    @staticmethod
    def _embed_step(view: StepView, plan: Plan) -> None:
        embed = Cursor(Kind.EMBED, view.embed, view.admit)
        _fill_in_order(plan, (embed,), view.budget + view.decode_tokens, view.spare)
        plan.decode = not plan.chunks


def _fill_in_order(
    plan: Plan, cursors: tuple[Cursor, ...], budget: int, ask_spare: Callable[[], int]
) -> None:
    """Give out `budget` tokens in order of arrival, then those of `ask_spare` to waiting requests."""
    chunks = plan.chunks
    capped: list[tuple[WorkItem, int, int]] = []
    had_budget = budget > 0
    while budget > 0 and (cursor := _earliest(cursors)) is not None:
        item = cursor.item
        assert item is not None
        tokens = cursor.take(budget, False, chunks)
        budget -= tokens
        if tokens and cursor.item is item and budget > 0:
            capped.append((item, cursor.left, cursor.cap))
            cursor.skip()
    while budget > 0 and capped:
        again: list[tuple[WorkItem, int, int]] = []
        for item, left, cap in capped:
            tokens = min(left, cap, budget)
            if tokens > 0:
                chunks.append(Chunk(item.request_id, item.kind, tokens))
            budget -= tokens
            if left > tokens:
                again.append((item, left - tokens, cap))
        capped = again
    if had_budget and budget == 0:
        spare = ask_spare()
        for cursor in cursors:
            cursor.keep_waiting_only()
        while spare > 0 and (cursor := _earliest(cursors)) is not None:
            spare -= cursor.take(spare, True, chunks)
    for cursor in cursors:
        if cursor.refusal is not None:
            plan.refused[cursor.kind] = cursor.refusal


def _earliest(cursors: tuple[Cursor, ...]) -> Cursor | None:
    """The cursor whose head comes first: in flight before waiting, then by order of arrival."""
    return min((cursor for cursor in cursors if cursor.item is not None), key=Cursor.rank, default=None)


def _count(totals: dict[Kind, int], scheduled: Mapping[Kind, int]) -> None:
    if any(count < 0 for count in scheduled.values()):
        raise ValueError(f"scheduled tokens must not be negative: {dict(scheduled)}")
    for kind, count in scheduled.items():
        totals[kind] += count
