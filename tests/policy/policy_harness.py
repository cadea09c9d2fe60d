"""A one-replica engine in miniature: queues, decodes, admission, and the books that the tests check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count

from orthrus.policy.queues import KindQueue
from orthrus.policy.work import Kind, Plan, Policy, Refusal, StepView, WorkItem


def queue(kind: Kind, *lengths: int, in_flight: tuple[int, ...] = (), first: int = 0) -> KindQueue:
    """A queue of waiting requests `<kind>-0`, ...; those with an index in `in_flight` hold a slot."""
    made = KindQueue(kind)
    for number, length in enumerate(lengths):
        made.add(f"{kind}-{number}", length, first + number, in_flight=number in in_flight)
    return made


def view(
    budget: int,
    embed: KindQueue,
    prefill: KindQueue,
    *,
    decode_tokens: int = 0,
    admit: Callable[[WorkItem], Refusal | None] = lambda item: None,
    spare: int = 0,
    expected_decode_tokens: int = 0,
    wait_s: float = 0.0,
) -> StepView:
    return StepView(
        budget,
        decode_tokens,
        embed,
        prefill,
        admit,
        lambda: spare,
        lambda: expected_decode_tokens,
        lambda item: wait_s,
    )


def tokens(plan: Plan) -> dict[Kind, int]:
    """Planned tokens of each kind, spare ones left out."""
    totals: Counter[Kind] = Counter({Kind.EMBED: 0, Kind.PREFILL: 0})
    for chunk in plan.chunks:
        if not chunk.spare:
            totals[chunk.kind] += chunk.tokens
    return dict(totals)


def shape(plan: Plan) -> list[tuple[str, int]]:
    return [(chunk.request_id, chunk.tokens) for chunk in plan.chunks]


class Replica:
    """Runs plans to the letter. `budget` is the whole step's; each generation decodes `output` tokens."""

    def __init__(self, policy: Policy, budget: int, *, output: int = 0, slots: int | None = None) -> None:
        self.policy = policy
        self.budget = budget
        self.output = output
        self.slots = slots
        self.queues = {kind: KindQueue(kind) for kind in (Kind.EMBED, Kind.PREFILL)}
        self.decoding: dict[str, int] = {}
        self.blocked: set[str] = set()
        self.done: list[str] = []
        self.first_run: list[str] = []
        self.run: Counter[Kind] = Counter()
        self._order = count()

    def submit(self, kind: Kind, length: int) -> str:
        order = next(self._order)
        request_id = f"{kind}-{order}"
        self.queues[kind].add(request_id, length, order)
        return request_id

    def abort(self, request_id: str) -> None:
        for held in self.queues.values():
            if request_id in held:
                held.remove(request_id)
        self.decoding.pop(request_id, None)

    def view(self) -> StepView:
        free = self.slots
        asked: set[str] = set()
        if free is not None:
            free -= len(self.decoding) + sum(held.in_flight_count for held in self.queues.values())

        def admit(item: WorkItem) -> Refusal | None:
            nonlocal free
            assert item.request_id not in asked, "admission asked twice"
            assert not item.in_flight
            asked.add(item.request_id)
            if item.request_id in self.blocked:
                return Refusal.KV_BLOCKS
            if free is not None:
                if free <= 0:
                    return Refusal.SEQUENCE_SLOTS
                free -= 1
            return None

        decodes = min(len(self.decoding), self.budget)
        embed, prefill = self.queues[Kind.EMBED], self.queues[Kind.PREFILL]
        return StepView(self.budget - decodes, decodes, embed, prefill, admit)

    def step(self) -> Plan:
        step_view = self.view()
        plan = self.policy.plan(step_view)
        ran: Counter[Kind] = Counter()
        decoding = list(self.decoding)[: step_view.decode_tokens] if plan.decode else []
        for chunk in plan.chunks:
            held = self.queues[chunk.kind]
            item = held.get(chunk.request_id)
            if not item.in_flight:
                held.start(chunk.request_id)
                self.first_run.append(chunk.request_id)
            ran[chunk.kind] += chunk.tokens
            if chunk.tokens < item.remaining:
                held.update(chunk.request_id, item.remaining - chunk.tokens)
                continue
            held.remove(chunk.request_id)
            if chunk.kind is Kind.PREFILL and self.output:
                self.decoding[chunk.request_id] = self.output
            else:
                self.done.append(chunk.request_id)
        for request_id in decoding:
            ran[Kind.DECODE] += 1
            self.decoding[request_id] -= 1
            if self.decoding[request_id] == 0:
                del self.decoding[request_id]
                self.done.append(request_id)
        self.policy.settle(ran)
        self.run += ran
        return plan
