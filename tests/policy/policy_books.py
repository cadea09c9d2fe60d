"""The rules of docs/policy.md kept a second time: an engine with its own queues, and books of the shares."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from orthrus.policy.options import PolicyOptions
from orthrus.policy.work import Kind, Policy, Refusal, StepView, WorkItem

EMBED, PREFILL = KINDS = (Kind.EMBED, Kind.PREFILL)
OTHER = {EMBED: PREFILL, PREFILL: EMBED}
NOTHING = 1e-6
"""Tokens this few are rounding."""


@dataclass
class Request:
    kind: Kind
    left: int
    order: int
    held_until: int = 0
    """Its admission is refused up to this step."""
    in_flight: bool = False


class Line(list[WorkItem]):
    @property
    def remaining(self) -> int:
        return sum(item.remaining for item in self)


@dataclass
class Step:
    """What one step was given, planned and ran; `budget` without the decodes."""

    budget: int
    work: dict[Kind, int]
    chunks: list[tuple[Kind, int]]
    refused: set[Kind]
    ran: Counter[Kind]
    urgent: bool
    delayed: list[str]
    """Decoding requests that got no token, though the budget covers them all."""


@dataclass
class Engine:
    """Plans and runs steps, in full or in part. `slots` bounds each kind, as decodes do for generations."""

    policy: Policy
    slots: int = 1_000_000
    target: float = 0.0
    now: int = 0
    requests: dict[str, Request] = field(default_factory=dict)
    decoding: dict[str, int] = field(default_factory=dict)
    submitted: int = 0

    def submit(self, kind: Kind, length: int, held: int = 0) -> None:
        self.submitted += 1
        self.requests[f"r{self.submitted}"] = Request(kind, length, self.submitted, self.now + held)

    def abort(self, request_id: str) -> None:
        self.requests.pop(request_id, None)
        self.decoding.pop(request_id, None)

    def work(self, kind: Kind) -> int:
        return sum(request.left for request in self.requests.values() if request.kind is kind)

    def step(
        self, budget: int, part: dict[Kind, float] | None = None, wait_s: float = 0.0, output: int = 0
    ) -> Step:
        """One step of `budget` tokens that runs `part` of each kind; prompts that end decode `output`."""
        self.now += 1
        ranked = sorted(self.requests.items(), key=lambda entry: (not entry[1].in_flight, entry[1].order))
        lines = {kind: Line() for kind in KINDS}
        for request_id, row in ranked:
            lines[row.kind].append(WorkItem(request_id, row.kind, row.left, row.order, row.in_flight))
        taken = Counter(row.kind for row in self.requests.values() if row.in_flight)
        taken[PREFILL] += len(self.decoding)
        refused: set[Kind] = set()

        def admit(item: WorkItem) -> Refusal | None:
            held = self.requests[item.request_id].held_until >= self.now
            if held or taken[item.kind] >= self.slots:
                refused.add(item.kind)
                return Refusal.KV_BLOCKS if held else Refusal.SEQUENCE_SLOTS
            taken[item.kind] += 1
            return None

        decodes = min(len(self.decoding), budget)
        room = budget - decodes
        expected = sum(self.decoding.values())
        step_view = StepView(
            room,
            decodes,
            *lines.values(),
            admit,
            expected_decode_tokens=lambda: expected,
            wait_s=lambda item: wait_s,
        )
        plan = self.policy.plan(step_view)
        chunks = [(chunk.kind, chunk.tokens) for chunk in plan.chunks]
        planned: Counter[Kind] = Counter()
        for kind, tokens in chunks:
            planned[kind] += tokens

        # Prompts first: a plan that leaves no room for the decodes shows as a delay.
        served = list(self.decoding)[: budget - planned.total() if plan.decode else 0]
        covered = len(self.decoding) <= budget
        delayed = [name for name in self.decoding if name not in served] if covered else []
        for request_id in served:
            self.decoding[request_id] -= 1
            if not self.decoding[request_id]:
                del self.decoding[request_id]

        ran: Counter[Kind] = Counter()
        quota = {kind: int(planned[kind] * (part or {}).get(kind, 1.0)) for kind in KINDS}
        for chunk in plan.chunks:
            tokens = min(chunk.tokens, quota[chunk.kind] - ran[chunk.kind])
            if tokens == 0:
                continue
            ran[chunk.kind] += tokens
            row = self.requests[chunk.request_id]
            row.in_flight = True
            row.left -= tokens
            if row.left == 0:
                del self.requests[chunk.request_id]
                if row.kind is PREFILL and output:
                    self.decoding[chunk.request_id] = output
        self.policy.settle({**ran, Kind.DECODE: len(served)})
        work = {kind: line.remaining for kind, line in lines.items()}
        urgent = bool(self.target) and wait_s >= self.target / 2
        return Step(room, work, chunks, refused, ran, urgent, delayed)


@dataclass
class Books:
    """Ideal and actual tokens of embeddings, counted while both kinds can take some.

    `owed` is ideal minus actual since a queue was last empty at the start or the end of a step;
    `opportunity` the largest one since then, with the debt that an urgent prefill may run up.
    """

    options: PolicyOptions
    owed: float = 0.0
    opportunity: float = 0.0
    embed: int = 0
    ideal: float = 0.0
    total: int = 0
    out_of_turn: int = 0
    due: bool = False
    """Late prefills had a whole step, and embeddings have had nothing since."""

    def record(self, step: Step) -> None:
        options, work = self.options, step.work
        if not all(work.values()):
            self.owed = self.opportunity = 0.0
        weight = work[EMBED] * options.embed_bias
        share = weight / (weight + work[PREFILL]) if weight else 0.0
        opportunity = min(step.budget, max(options.embed_chunk, options.prefill_chunk or step.budget))
        if options.ttft_target_s:
            opportunity += step.budget
        self.opportunity = max(self.opportunity, opportunity)
        contested = self._contested(step, share)
        whole = self._lends(step) or (step.urgent and all(work.values()) and not step.ran[EMBED])
        if whole and step.ran[PREFILL]:
            self.due = True
        elif step.ran[EMBED]:
            self.due = False
        actual = {kind: min(step.ran[kind], contested[kind]) for kind in KINDS}
        self.embed += actual[EMBED]
        self.total += sum(actual.values())
        self.ideal += share * sum(actual.values())
        owed = self.owed + actual[PREFILL] * share - actual[EMBED] * (1 - share)
        if step.ran.total() < sum(tokens for _, tokens in step.chunks):
            most = max(opportunity, abs(self.owed))
            owed = max(-most, min(most, owed))
        self.owed = owed
        if any(step.ran[kind] == work[kind] for kind in KINDS):
            self.owed = self.opportunity = 0.0

    def _contested(self, step: Step, share: float) -> Counter[Kind]:
        """Tokens planned and charged up to the moment when a kind is used up or its head refused.

        A head is asked when its kind's turn comes: the other kind's chunk out of turn tells when. While
        prefills are urgent, half of a step is not charged to prefills that owe a budget, nor to embeddings
        that are owed nothing.
        """
        contested: Counter[Kind] = Counter()
        ran: Counter[Kind] = Counter()
        left = dict(step.work)
        owed = self.owed
        for kind, tokens in step.chunks:
            if not all(left.values()):
                break
            has_half = step.urgent and ran[PREFILL] < (step.budget if self.due else step.budget + 1) // 2
            has_whole = self._lends(step) and owed < step.budget
            turn = PREFILL if has_half or has_whole else EMBED if step.urgent else self._turn(owed, left)
            is_free = step.urgent and (owed >= step.budget if turn is PREFILL else owed <= NOTHING)
            if kind is not turn:
                if OTHER[kind] in step.refused:
                    break
                self.out_of_turn += 1
            left[kind] -= tokens
            ran[kind] += tokens
            if not is_free:
                contested[kind] += tokens
                owed += tokens * share if kind is PREFILL else -tokens * (1 - share)
        return contested

    def _lends(self, step: Step) -> bool:
        return step.urgent and all(step.work.values()) and not self.due and self.owed < step.budget

    def _turn(self, owed: float, left: dict[Kind, int]) -> Kind:
        if abs(owed) <= NOTHING:
            return EMBED if left[EMBED] > left[PREFILL] else PREFILL
        return EMBED if owed > 0 else PREFILL


@dataclass
class Load:
    """A random workload, all of it from `seed`."""

    seed: int
    steps: int
    arrivals: int
    longest: int
    budgets: list[int]
    refusals: float
    aborts: float
    short: float
    """Parts of requests refused for a time, of steps with an abort, of steps that run less than planned."""

    def run(self, engine: Engine, output: int = 0) -> Iterator[Step]:
        rng = random.Random(self.seed)
        for _ in range(self.steps):
            for _ in range(rng.randint(0, self.arrivals)):
                held = rng.randint(1, 12) if rng.random() < self.refusals else 0
                engine.submit(rng.choice(KINDS), rng.randint(1, self.longest), held)
            present = [*engine.requests, *engine.decoding]
            if present and rng.random() < self.aborts:
                engine.abort(rng.choice(present))
            short = rng.random() < self.short
            part = {kind: rng.choice([0, rng.random(), 1]) for kind in KINDS} if short else None
            wait_s = rng.choice([0, 0.4, 0.6, 1]) * engine.target
            yield engine.step(rng.choice(self.budgets), part, wait_s, rng.randint(0, output))
