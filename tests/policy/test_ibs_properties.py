"""The properties that the paper and DESIGN.md claim for IBS, over random workloads."""

import copy
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from policy_harness import Replica, queue, tokens, view

from orthrus.policy.ibs import IntraBatchScheduler
from orthrus.policy.options import PolicyOptions
from orthrus.policy.work import Kind

EMBED, PREFILL = Kind.EMBED, Kind.PREFILL
KINDS = (EMBED, PREFILL)

lengths = st.integers(1, 300)
budgets = st.integers(1, 400)
chunks = st.integers(1, 128)
prefill_chunks = st.integers(0, 128)


def ibs(embed_chunk, prefill_chunk, **options):
    """The paper's policy: without a TTFT target, unless the test sets one."""
    values = {"embed_chunk": embed_chunk, "prefill_chunk": prefill_chunk, "ttft_target_s": 0, **options}
    return IntraBatchScheduler(PolicyOptions(**values))


def largest(embed_chunk, prefill_chunk, budget):
    """Tokens of the largest opportunity."""
    return min(budget, max(embed_chunk, prefill_chunk or budget))


@st.composite
def workloads(draw):
    """Steps of events: submissions, an abort, heads that cannot be admitted for now."""
    event = st.one_of(
        st.tuples(st.just("submit"), st.sampled_from(KINDS), lengths),
        st.tuples(st.just("abort"), st.integers(0, 40)),
        st.tuples(st.just("block"), st.integers(0, 40)),
        st.tuples(st.just("unblock")),
    )
    return draw(st.lists(st.lists(event, max_size=5), min_size=1, max_size=25))


def play(replica, steps):
    """Yields (view before, plan) for each step of a workload; submitted ids are collected on the replica."""
    submitted = []
    for events in steps:
        for name, *rest in events:
            if name == "submit":
                submitted.append(replica.submit(*rest))
            elif name == "unblock":
                replica.blocked.clear()
            elif submitted:
                request_id = submitted[rest[0] % len(submitted)]
                if name == "abort":
                    replica.abort(request_id)
                else:
                    replica.blocked.add(request_id)
        before = {kind: list(replica.queues[kind]) for kind in KINDS}
        step_view = replica.view()
        yield before, step_view, replica.step()


@given(workloads(), budgets, chunks, prefill_chunks, st.integers(0, 12), st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_every_step_keeps_its_promises(steps, budget, chunk, prefill_chunk, output, slots):
    policy = ibs(chunk, prefill_chunk)
    replica = Replica(policy, budget, output=output, slots=slots)
    for before, step_view, plan in play(replica, steps):
        planned = tokens(plan)
        # the budget, with the decode reservation, is never exceeded, and decodes run in every step
        assert sum(planned.values()) <= step_view.budget
        assert plan.decode
        # chunk caps
        assert all(c.tokens >= 1 for c in plan.chunks)
        assert all(c.tokens <= chunk for c in plan.chunks if c.kind is EMBED)
        if prefill_chunk:
            assert all(c.tokens <= prefill_chunk for c in plan.chunks if c.kind is PREFILL)
        # arrival order within a kind, in flight first: a prefix of the queue, each but the last used up
        for kind in KINDS:
            granted: dict[str, int] = {}
            for c in plan.chunks:
                if c.kind is kind:
                    granted[c.request_id] = granted.get(c.request_id, 0) + c.tokens
            served = before[kind][: len(granted)]
            assert list(granted) == [item.request_id for item in served]
            assert all(granted[item.request_id] == item.remaining for item in served[:-1])
            assert all(granted[item.request_id] <= item.remaining for item in served)
            # work conservation: budget is left only where this kind is used up or its head was refused
            if sum(planned.values()) < step_view.budget:
                left = sum(item.remaining for item in before[kind]) - planned[kind]
                assert left == 0 or kind in plan.refused
        # credits
        state = policy.state()
        assert state["credit_embed"] + state["credit_prefill"] == 0
        assert abs(state["credit_embed"]) <= largest(chunk, prefill_chunk, budget)


@given(workloads(), budgets, chunks, prefill_chunks, st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_everything_admissible_ends(steps, budget, chunk, prefill_chunk, slots):
    replica = Replica(ibs(chunk, prefill_chunk), budget, output=3, slots=slots)
    for _ in play(replica, steps):
        pass
    replica.blocked.clear()
    work = sum(held.remaining for held in replica.queues.values())
    waiting = sum(len(held) for held in replica.queues.values()) + len(replica.decoding)
    for _ in range(work + 4 * waiting + 1):
        replica.step()
    assert not replica.decoding
    assert all(len(held) == 0 and held.remaining == 0 for held in replica.queues.values())


@given(
    st.integers(1, 10_000),
    st.integers(1, 10_000),
    chunks,
    prefill_chunks,
    st.lists(budgets, min_size=1, max_size=30),
    st.floats(0.1, 10),
)
@settings(max_examples=150, deadline=None)
def test_share_is_within_one_opportunity_for_fixed_weights(embed, prefill, chunk, prefill_chunk, steps, bias):
    """Queues of constant remaining work: after every step the totals differ from the ideal by at most one."""
    policy = ibs(chunk, prefill_chunk, embed_bias=bias)
    scale = 1_000_000  # so that no step uses a queue up; only the ratio matters
    step_queues = queue(EMBED, embed * scale), queue(PREFILL, prefill * scale)
    share = bias * embed / (bias * embed + prefill)
    ran = {EMBED: 0, PREFILL: 0}
    for budget in steps:
        planned = tokens(policy.plan(view(budget, *step_queues)))
        policy.settle(planned)
        ran = {kind: ran[kind] + planned[kind] for kind in KINDS}
        ideal = share * sum(ran.values())
        assert abs(ran[EMBED] - ideal) <= largest(chunk, prefill_chunk, max(steps)) + 1e-3


@given(st.integers(1, 20), st.integers(1, 20), chunks, st.integers(1, 128), budgets)
@settings(max_examples=60, deadline=None)
def test_cumulative_ratio_converges_to_the_ratio_of_remaining_work(
    embed, prefill, chunk, prefill_chunk, budget
):
    """The error after k steps is at most one opportunity over all tokens so far, so it falls as 1/k."""
    policy = ibs(chunk, prefill_chunk)
    step_queues = queue(EMBED, embed * 100_000), queue(PREFILL, prefill * 100_000)
    ran = {EMBED: 0, PREFILL: 0}
    for steps in range(1, 101):
        planned = tokens(policy.plan(view(budget, *step_queues)))
        policy.settle(planned)
        ran = {kind: ran[kind] + planned[kind] for kind in KINDS}
        error = abs(ran[EMBED] / sum(ran.values()) - embed / (embed + prefill))
        assert error <= (largest(chunk, prefill_chunk, budget) + 1e-3) / (steps * budget)


@given(lengths, lengths, chunks, st.integers(1, 128), st.integers(1, 50), st.sampled_from(KINDS))
@settings(max_examples=60, deadline=None)
def test_a_lone_request_is_not_starved_by_a_flood_of_the_other_kind(
    one, many, chunk, prefill_chunk, budget, lone
):
    """However much of the other kind waits, a kind waits for what pays for one opportunity of its own."""
    flood = PREFILL if lone is EMBED else EMBED
    policy = ibs(chunk, prefill_chunk)
    flooded = queue(flood, *[many] * 200)
    single = queue(lone, one)
    by_kind = {lone: single, flood: flooded}
    share = one / (one + flooded.remaining)
    bound = largest(chunk, prefill_chunk, budget) / share / budget + 2
    steps = 0
    while True:
        planned = tokens(policy.plan(view(budget, by_kind[EMBED], by_kind[PREFILL])))
        policy.settle(planned)
        if planned[lone]:
            break
        steps += 1
        assert steps <= bound


@given(st.integers(1, 900), lengths, chunks, prefill_chunks, st.integers(1, 400), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_beside_late_prefills_an_embedding_has_half_of_every_second_step(
    length, many, chunk, prefill_chunk, budget, times
):
    """However short it or its rest is, however many prompts there are, and however often one comes."""
    policy = ibs(chunk, prefill_chunk, ttft_target_s=1.0)
    flood = queue(PREFILL, *[many] * 200)
    for _ in range(times):
        left, steps = length, 0
        while left:
            planned = tokens(policy.plan(view(budget, queue(EMBED, left), flood, wait_s=0.5)))
            policy.settle(planned)
            left -= planned[EMBED]
            steps += 1
        assert steps <= 2 * math.ceil(length / (budget - budget // 2))


@given(lengths, lengths, chunks, prefill_chunks, st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_a_late_prefill_has_half_of_each_step_beside_embeddings(length, many, chunk, prefill_chunk, budget):
    policy = ibs(chunk, prefill_chunk, ttft_target_s=1.0)
    left, steps = length, 0
    while left:
        planned = tokens(
            policy.plan(view(budget, queue(EMBED, *[many] * 200), queue(PREFILL, left), wait_s=0.5))
        )
        policy.settle(planned)
        left -= planned[PREFILL]
        steps += 1
    assert steps <= (math.ceil(length / (budget // 2)) if budget > 1 else 2 * length)


@given(workloads(), budgets, chunks, prefill_chunks, st.integers(0, 64))
@settings(max_examples=60, deadline=None)
def test_planning_is_repeatable_and_changes_nothing(steps, budget, chunk, prefill_chunk, spare):
    replica = Replica(ibs(chunk, prefill_chunk), budget, slots=10)
    for _ in play(replica, steps):
        pass
    state = dict(replica.policy.state())
    contents = {kind: list(replica.queues[kind]) for kind in KINDS}
    twin = copy.deepcopy(replica.policy)
    step_view = replica.view()
    first = replica.policy.plan(view(step_view.budget, step_view.embed, step_view.prefill, spare=spare))
    again = replica.policy.plan(view(step_view.budget, step_view.embed, step_view.prefill, spare=spare))
    other = twin.plan(view(step_view.budget, step_view.embed, step_view.prefill, spare=spare))
    assert first == again == other
    after = {**replica.policy.state(), "embed_share": state["embed_share"]}
    assert after == state
    assert contents == {kind: list(replica.queues[kind]) for kind in KINDS}
    over = sum(c.tokens for c in first.chunks if c.spare)
    assert over <= spare
    in_flight = {item.request_id for items in contents.values() for item in items if item.in_flight}
    assert not any(c.spare and c.request_id in in_flight for c in first.chunks)


@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 200), st.floats(0, 1), st.floats(0, 1)), max_size=30
    ),
    chunks,
    prefill_chunks,
    budgets,
)
@settings(max_examples=100, deadline=None)
def test_settling_with_less_than_planned(steps, chunk, prefill_chunk, budget):
    """Whatever part of a plan runs, credits stay bounded, sum to zero, and follow the formula."""
    policy = ibs(chunk, prefill_chunk)
    for embed, prefill, embed_part, prefill_part in steps:
        embeds = queue(EMBED, *([embed] if embed else []))
        prefills = queue(PREFILL, *([prefill] if prefill else []))
        before = policy.state()["credit_embed"]
        planned = tokens(policy.plan(view(budget, embeds, prefills)))
        ran = {EMBED: int(planned[EMBED] * embed_part), PREFILL: int(planned[PREFILL] * prefill_part)}
        policy.settle(ran)
        credit = policy.state()["credit_embed"]
        bound = largest(chunk, prefill_chunk, budget)
        assert credit == -policy.state()["credit_prefill"]
        assert abs(credit) <= bound
        if ran[EMBED] >= embed or ran[PREFILL] >= prefill:
            assert credit == 0
        elif planned[EMBED] < embed and planned[PREFILL] < prefill:
            share = embed / (embed + prefill)
            formula = before + ran[PREFILL] * share - ran[EMBED] * (1 - share)
            assert abs(credit - max(-bound, min(bound, formula))) < 1e-6
