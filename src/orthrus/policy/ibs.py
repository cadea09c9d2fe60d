"""Intra-batch scheduling: the paper's policy (section 4).

Two queues share a step's token budget in proportion to their remaining work. Each scheduling opportunity
raises both kinds' credit by its share of the tokens given out, and the kind that took them pays for them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from orthrus.policy.cursor import Cursor
from orthrus.policy.options import PolicyOptions
from orthrus.policy.work import Kind, Plan, StepView, totals_by_name

_TIE = 1e-6
"""Tokens this few are none: what rounding leaves of sums that cancel and of a share of whole tokens."""

_URGENT = 0.5
"""A waiting generation is urgent from this part of the TTFT target on; its prefill takes time as well."""


class _Pending(NamedTuple):
    """What settling the last plan needs.

    `contested` are the tokens of embeddings and of prefills granted while both kinds could take work and
    not for nothing, or None if that held for the whole step. `is_lent`: late prefills went first in it all.
    """

    embed_share: float
    embed_work: int
    prefill_work: int
    credit_limit: float
    contested: tuple[int, int] | None
    is_urgent: bool
    is_lent: bool


class IntraBatchScheduler:
    """The IBS policy. Its state: `credit`, the tokens embeddings are owed, and whether a half step is due.

    Generation is owed minus that, so the two credits sum to zero. The share of embeddings is
    W_e / (W_e + W_g), fixed within a step, over remaining prompt tokens. Rules that the paper leaves open:

    - Tokens given to one kind while the other cannot take any (refused, at its bound, used up) are free:
      a kind neither owes for what nobody else could use, nor saves up while it is shut out.
    - A credit never exceeds the largest opportunity so far (and a budget, with a TTFT target), whatever the
      engine made of the plans.
    - With a TTFT target the first prefill is urgent once it has waited for half of it. Prefills then go first
      in a whole step, unless they owe a budget or embeddings have had nothing since the last one: then each
      kind has half of it, which is free for prefills that owe a budget and embeddings that are owed nothing.
    - Equal credits and equal remaining work: generation first.
    """

    name: ClassVar[str] = "ibs"
    uses: ClassVar[frozenset[str]] = frozenset(PolicyOptions.__dataclass_fields__)

    __slots__ = ("_credit", "_due", "_pending", "_share", "_totals", "options")

    def __init__(self, options: PolicyOptions | None = None) -> None:
        self.options = options or PolicyOptions()
        self._credit = 0.0
        self._share = 0.0
        self._due = False
        self._pending: _Pending | None = None
        self._totals = dict.fromkeys(Kind, 0)

    def plan(self, view: StepView) -> Plan:
        """Order this step's chunks; see `Policy.plan`. Credits move on a copy only, until `settle`."""
        options = self.options
        embed_left, prefill_left = view.embed.remaining, view.prefill.remaining
        share = self._embed_share(view)
        total = view.budget + view.decode_tokens
        bounded = options.max_embed_share < 1
        embed_bound = max(1, int(options.max_embed_share * total + _TIE)) if bounded else sys.maxsize
        embed = Cursor(Kind.EMBED, view.embed, view.admit, options.embed_chunk, embed_bound)
        prefill = Cursor(Kind.PREFILL, view.prefill, view.admit, options.prefill_chunk or sys.maxsize)
        both_work = embed_left > 0 and prefill_left > 0
        credit = self._credit if both_work else 0.0
        target = options.ttft_target_s
        # Urgent prefills go first in a whole step while they owe less than a budget, but not in two running;
        # else each kind has half of it, even one that owes, or a budget of one in turn: neither starves.
        first = prefill.item
        is_urgent = target > 0 and both_work and first is not None and view.wait_s(first) >= _URGENT * target
        half_done = prefill_left - (view.budget + (not self._due)) // 2
        if options.count_decode:
            credit += view.decode_tokens * share
        is_lent = is_urgent and not self._due and credit < view.budget
        embed_contested = prefill_contested = 0

        plan = Plan()
        chunks = plan.chunks
        budget = view.budget
        contested: tuple[int, int] | None = None
        any_free = False
        spare = False
        while True:
            while budget > 0:
                if embed.item is None:
                    if prefill.item is None:
                        break
                    budget -= prefill.take(budget, spare, chunks)
                elif prefill.item is None:
                    budget -= embed.take(budget, spare, chunks)
                elif (
                    prefill_left > half_done or (is_lent and credit < view.budget)
                    if is_urgent
                    else credit < -_TIE or (credit <= _TIE and embed_left <= prefill_left)
                ):
                    is_free = is_urgent and credit >= view.budget
                    is_whole = not is_urgent or (is_lent and not is_free)
                    most = budget if is_whole else min(budget, prefill_left - half_done)
                    tokens = prefill.take(most, spare, chunks)
                    budget -= tokens
                    prefill_left -= tokens
                    if is_free:
                        any_free = True
                    else:
                        prefill_contested += tokens
                        credit += tokens * share
                else:
                    is_free = is_urgent and credit <= _TIE
                    tokens = embed.take(budget, spare, chunks)
                    budget -= tokens
                    embed_left -= tokens
                    if is_free:
                        any_free = True
                    else:
                        embed_contested += tokens
                        credit -= tokens * (1.0 - share)
            if spare:
                break
            if any_free or embed.item is None or prefill.item is None:
                contested = (embed_contested, prefill_contested)
            if budget > 0 or view.budget <= 0:
                break
            budget = view.spare()
            if not budget:
                break
            spare = True
            embed.keep_waiting_only()
            prefill.keep_waiting_only()

        for cursor in (embed, prefill):
            if cursor.refusal is not None:
                plan.refused[cursor.kind] = cursor.refusal
        self._share = share
        self._pending = _Pending(
            share,
            view.embed.remaining,
            view.prefill.remaining,
            self._credit_limit(view),
            contested,
            is_urgent,
            is_lent,
        )
        return plan

    def settle(self, scheduled: Mapping[Kind, int]) -> None:
        """Charge what really ran. ValueError if a count is negative, RuntimeError if nothing was planned."""
        embed = scheduled.get(Kind.EMBED, 0)
        prefill = scheduled.get(Kind.PREFILL, 0)
        decode = scheduled.get(Kind.DECODE, 0)
        if embed < 0 or prefill < 0 or decode < 0:
            raise ValueError(f"scheduled tokens must not be negative: {dict(scheduled)}")
        pending, self._pending = self._pending, None
        if pending is None:
            if embed or prefill or decode:
                raise RuntimeError("settle() needs a plan() before it: nothing is pending")
            return
        if pending.is_urgent and prefill and (pending.is_lent or not embed):
            self._due = True
        elif embed:
            self._due = False
        self._totals[Kind.EMBED] += embed
        self._totals[Kind.PREFILL] += prefill
        self._totals[Kind.DECODE] += decode
        if embed >= pending.embed_work or prefill >= pending.prefill_work:
            self._credit = 0.0  # a queue ran empty: it forfeits its credit, and the other its debt
            return
        if pending.contested is not None:
            embed = min(embed, pending.contested[0])
            prefill = min(prefill, pending.contested[1])
        generation = prefill + (decode if self.options.count_decode else 0)
        share = pending.embed_share
        # A step with a small budget must not cut a credit that a larger one left.
        limit = max(pending.credit_limit, abs(self._credit))
        credit = self._credit + generation * share - embed * (1.0 - share)
        self._credit = max(-limit, min(limit, credit))

    def stand_by(self) -> None:
        """The embeddings' queue is empty, run or aborted: credit and debt are forfeited."""
        self._credit = self._share = 0.0
        self._due = False

    def state(self) -> Mapping[str, float]:
        """Credits (tokens owed to each kind), ideal embedding share, tokens run in planned steps.

        `half_due` is 1 from a step that late prefills had as a whole until embeddings are given something.
        """
        return {
            "credit_embed": self._credit,
            "credit_prefill": -self._credit,
            "embed_share": self._share,
            "half_due": float(self._due),
            **totals_by_name(self._totals),
        }

    def _embed_share(self, view: StepView) -> float:
        embed = view.embed.remaining * self.options.embed_bias
        generation = view.prefill.remaining + (
            view.expected_decode_tokens() if self.options.count_decode else 0
        )
        return embed / (embed + generation) if embed > 0 else 0.0

    def _credit_limit(self, view: StepView) -> float:
        options = self.options
        largest = max(options.embed_chunk, options.prefill_chunk or view.budget)
        limit = min(largest, view.budget)
        if options.count_decode:
            limit = max(limit, view.decode_tokens)
        return float(limit + (view.budget if options.ttft_target_s else 0))
