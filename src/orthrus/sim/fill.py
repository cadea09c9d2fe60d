"""How full steps get with atomic and with chunked embeddings: one replica, one mixed workload (paper A.3).

The steps are planned by the same IBS class as the engine's; only the clock is a formula.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from heapq import heapify, heapreplace

from orthrus.policy.ibs import IntraBatchScheduler
from orthrus.policy.options import PolicyOptions
from orthrus.policy.queues import KindQueue
from orthrus.policy.work import Chunk, Kind, Refusal, StepView, WorkItem
from orthrus.sim.scenario import Embedding, FillScenario, ScenarioError


@dataclass(frozen=True, slots=True)
class FillResult:
    """What one run measured after warm-up. Rates in requests per second, fill as a part of the budget.

    `fill` is the mean over steps, as the paper's; `fill_by_time` weighs each step by how long it lasted.
    """

    embedding: Embedding
    fill: float
    fill_by_time: float
    generation_per_s: float
    embedding_per_s: float
    steps: int
    step_ms: float
    decodes_per_step: float


class _Replica:
    """Queues, decodes and clients of one run."""

    def __init__(self, scenario: FillScenario, embedding: Embedding) -> None:
        self.scenario = scenario
        self.embedding = embedding
        self.embed = KindQueue(Kind.EMBED)
        self.prefill = KindQueue(Kind.PREFILL)
        self.decoding: dict[str, int] = {}
        self.done: Counter[Kind] = Counter()
        self._random = random.Random(scenario.seed)
        self._order = 0
        self._arrivals = [
            self._random.random() * scenario.period_s for _ in range(scenario.generation_clients)
        ]
        heapify(self._arrivals)
        for _ in range(scenario.embedding_clients):
            self._embed()

    def next_arrival(self) -> float:
        """Time of the next generation request; infinite if there are no generation clients."""
        return self._arrivals[0] if self._arrivals else float("inf")

    def arrive(self, now: float) -> None:
        """Queue the generation requests sent until `now`."""
        while self.next_arrival() <= now:
            self._order += 1
            self.prefill.add(f"g{self._order}", self.scenario.prompt_tokens, self._order)
            heapreplace(self._arrivals, self._arrivals[0] + self.scenario.period_s)

    def _embed(self) -> None:
        length = self._random.randint(self.scenario.embed_min_tokens, self.scenario.embed_max_tokens)
        self._order += 1
        self.embed.add(f"e{self._order}", length, self._order)

    def view(self) -> StepView:
        """This step's budget and queues; atomic embeddings are refused where they do not fit."""
        decodes = min(len(self.decoding), self.scenario.budget)
        room = self.scenario.budget - decodes
        free = room - sum(item.remaining for item in self.prefill if item.in_flight)

        def admit(item: WorkItem) -> Refusal | None:
            nonlocal free
            if self.embedding is Embedding.ATOMIC and item.kind is Kind.EMBED and item.remaining > free:
                return Refusal.TOKEN_BUDGET
            free -= item.remaining
            return None

        return StepView(room, decodes, self.embed, self.prefill, admit)

    def whole(self, chunks: list[Chunk]) -> list[Chunk]:
        """The chunks without an embedding chunk that the end of the budget has cut short."""
        last = chunks[-1] if chunks else None
        if self.embedding is not Embedding.WHOLE_CHUNKS or last is None or last.kind is not Kind.EMBED:
            return chunks
        granted = sum(chunk.tokens for chunk in chunks[:-1] if chunk.request_id == last.request_id)
        left = self.embed.get(last.request_id).remaining - granted
        return chunks if last.tokens == min(self.scenario.chunk, left) else chunks[:-1]

    def run(self, chunks: list[Chunk], decodes: int) -> Counter[Kind]:
        """Execute a step; returns the tokens of each kind. A finished prefill gives the first output."""
        ran: Counter[Kind] = Counter({Kind.DECODE: decodes})
        for request_id in list(self.decoding)[:decodes]:
            self._generated(request_id, self.decoding[request_id])
        for chunk in chunks:
            ran[chunk.kind] += chunk.tokens
            queue = self.embed if chunk.kind is Kind.EMBED else self.prefill
            item = queue.get(chunk.request_id)
            if chunk.tokens < item.remaining:
                if not item.in_flight:
                    queue.start(chunk.request_id)
                queue.update(chunk.request_id, item.remaining - chunk.tokens)
                continue
            queue.remove(chunk.request_id)
            if chunk.kind is Kind.EMBED:
                self.done[Kind.EMBED] += 1
                self._embed()
            else:
                self._generated(chunk.request_id, self.scenario.output_tokens)
        return ran

    def _generated(self, request_id: str, missing: int) -> None:
        if missing > 1:
            self.decoding[request_id] = missing - 1
        else:
            self.decoding.pop(request_id, None)
            self.done[Kind.DECODE] += 1


def simulate(scenario: FillScenario, embedding: Embedding) -> FillResult:
    """Run one scenario to the end of its window. Deterministic: equal scenarios give equal results.

    ScenarioError if no step starts within the window.
    """
    chunk = scenario.budget if embedding is Embedding.ATOMIC else scenario.chunk
    policy = IntraBatchScheduler(PolicyOptions(embed_chunk=chunk))
    replica = _Replica(scenario, embedding)
    now = 0.0
    end = scenario.warmup_s + scenario.window_s
    steps = tokens = decodes = 0
    busy = token_time = 0.0
    while now < end:
        replica.arrive(now)
        view = replica.view()
        chunks = replica.whole(policy.plan(view).chunks)
        if not chunks and view.decode_tokens == 0:
            now = replica.next_arrival()
            continue
        ran = replica.run(chunks, view.decode_tokens)
        policy.settle(ran)
        count = ran.total()
        duration = scenario.step_s + count * scenario.token_s
        if now < scenario.warmup_s:
            replica.done.clear()
        else:
            steps += 1
            tokens += count
            decodes += view.decode_tokens
            busy += duration
            token_time += count * duration
        now += duration
    if steps == 0:
        raise ScenarioError(f"window_s is {scenario.window_s}, must be long enough for one step")
    return FillResult(
        embedding=embedding,
        fill=tokens / steps / scenario.budget,
        fill_by_time=token_time / busy / scenario.budget,
        generation_per_s=replica.done[Kind.DECODE] / scenario.window_s,
        embedding_per_s=replica.done[Kind.EMBED] / scenario.window_s,
        steps=steps,
        step_ms=busy / steps * 1e3,
        decodes_per_step=decodes / steps,
    )
