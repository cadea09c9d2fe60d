"""IBS against independent books, over random runs with arrivals, aborts, refusals and short steps."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from policy_books import EMBED, KINDS, NOTHING, OTHER, PREFILL, Books, Engine, Load

from orthrus.policy.ibs import IntraBatchScheduler
from orthrus.policy.options import PolicyOptions

seeds = st.integers(0, 2**32)
rates = st.sampled_from([0, 0.1, 0.4])
paper = st.builds(
    PolicyOptions,
    embed_chunk=st.integers(1, 48),
    prefill_chunk=st.integers(0, 48),
    embed_bias=st.sampled_from([1.0, 0.3, 4.0]),
    ttft_target_s=st.just(0.0),
)
targets = st.builds(
    PolicyOptions,
    embed_chunk=st.integers(1, 48),
    prefill_chunk=st.integers(0, 48),
    ttft_target_s=st.just(1.0),
)
loads = st.builds(
    Load,
    seed=seeds,
    steps=st.integers(1, 60),
    arrivals=st.integers(1, 5),
    longest=st.integers(1, 600),
    budgets=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    refusals=rates,
    aborts=rates,
    short=st.sampled_from([0, 0.2, 0.8]),
)
slots = st.sampled_from([1, 3, 1_000_000])


def engine_for(options, slots=1_000_000):
    return Engine(IntraBatchScheduler(options), slots, options.ttft_target_s)


@given(loads, st.one_of(paper, targets), slots)
@settings(max_examples=200, deadline=None)
def test_every_contested_opportunity_goes_to_the_kind_that_is_owed_more(load, options, slots):
    """A prefill past half of its target goes first in half a step, or a whole one: policy_books says when."""
    books = Books(options)
    for step in load.run(engine_for(options, slots)):
        books.record(step)
        assert books.out_of_turn == 0


@given(loads, st.one_of(paper, targets), slots)
@settings(max_examples=200, deadline=None)
def test_contested_tokens_stay_within_one_opportunity_of_the_sum_of_ideal_shares(load, options, slots):
    """The weights change in every step, and still no bound grows with the steps.

    A kind takes an opportunity of n <= M tokens only while it is owed nothing or more, and is then owed
    n * (1 - its share) <= M less. So each opportunity moves what is owed towards zero, or past zero by at
    most M, whatever the share of its step. An urgent prefill is taken while embeddings are owed less than
    a budget, or for nothing: then M is one budget more. Where a step runs less than planned, tokens that
    would have cancelled each other may be missing; the rules cut what is then owed to one opportunity, or to
    what was owed before if that is more, and the books do the same. They never cut after a step that ran in
    full.
    """
    books = Books(options)
    for step in load.run(engine_for(options, slots)):
        books.record(step)
        assert abs(books.owed) <= books.opportunity + NOTHING


@given(loads, targets, slots)
@settings(max_examples=100, deadline=None)
def test_an_urgent_prefill_gets_half_of_each_step_and_embeddings_half_of_every_second(load, options, slots):
    books = Books(options)
    for step in load.run(engine_for(options, slots)):
        half = step.budget // 2
        planned = Counter(kind for kind, tokens in step.chunks for _ in range(tokens))
        if step.urgent and PREFILL not in step.refused:
            assert planned[PREFILL] >= min(half, step.work[PREFILL])
        if step.urgent and books.owed >= step.budget + half and EMBED not in step.refused:
            assert planned[EMBED] >= min(half, step.work[EMBED])
        if step.urgent and books.due and EMBED not in step.refused:
            assert planned[EMBED] >= min(step.budget - half, step.work[EMBED])
        books.record(step)


@given(seeds, paper, st.integers(1, 200), st.integers(1, 300), rates)
@settings(max_examples=30, deadline=None)
def test_cumulative_share_converges_to_the_mean_of_drifting_ideal_shares(
    seed, options, budget, longest, refusals
):
    """Both queues always have work, so nothing is forfeited: the error is one opportunity over all tokens."""
    rng = random.Random(seed)
    engine = engine_for(options)
    books = Books(options)
    for _ in range(150):
        busy = rng.choice(KINDS)
        for kind in KINDS:
            most = budget * (rng.randint(2, 8) if kind is busy else 2)
            while engine.work(kind) <= most:
                held = rng.randint(1, 6) if rng.random() < refusals else 0
                engine.submit(kind, rng.randint(budget, budget + longest), held)
        books.record(engine.step(budget))
        if books.total:
            error = abs(books.embed / books.total - books.ideal / books.total)
            assert error <= (books.opportunity + NOTHING) / books.total
    if not refusals:
        assert books.total == 150 * budget


@given(loads, paper, st.integers(1, 300), st.integers(0, 20), st.sampled_from(KINDS))
@settings(max_examples=100, deadline=None)
def test_a_head_refused_for_a_time_is_served_soon_after_and_does_not_shut_the_other_kind_out(
    load, options, length, refused_for, lone
):
    """Each kind waits for at most M * (1 + share) tokens of its own share: that / (share * budget) steps.

    When the head may be admitted its kind is owed at least -M, whatever happened before, and the other
    kind too. A kind that has not been served in n steps was owed nothing at the last opportunity
    of the n-th, though it had been raised by its share of all tokens but that one's (at most M).
    """
    engine = engine_for(options)
    for _ in load.run(engine):
        pass
    for request_id, request in list(engine.requests.items()):
        request.held_until = 0
        if request.kind is lone:
            engine.abort(request_id)
    engine.submit(lone, length, held=refused_for)
    budget = load.budgets[0]

    def flooded_step():
        while engine.work(OTHER[lone]) <= 2 * budget:
            engine.submit(OTHER[lone], 5 * budget)
        return engine.step(budget)

    for _ in range(refused_for):
        assert flooded_step().ran == {OTHER[lone]: budget}

    most = max(min(each, max(options.embed_chunk, options.prefill_chunk or each)) for each in load.budgets)
    due = dict.fromkeys(KINDS, 0.0)
    while due:
        taken = flooded_step()
        weights = {EMBED: taken.work[EMBED] * options.embed_bias, PREFILL: taken.work[PREFILL]}
        for kind in list(due):
            if taken.ran[kind]:
                del due[kind]
                continue
            share = weights[kind] / sum(weights.values())
            due[kind] += share * budget
            assert due[kind] <= most * (1 + share) + NOTHING


@given(
    loads,
    st.builds(
        PolicyOptions,
        embed_chunk=st.integers(1, 48),
        prefill_chunk=st.integers(0, 48),
        max_embed_share=st.sampled_from([1.0, 0.3]),
        count_decode=st.booleans(),
        ttft_target_s=st.sampled_from([0.0, 1.0]),
    ),
    slots,
)
@settings(max_examples=100, deadline=None)
def test_every_decoding_request_gets_its_token_in_every_step_that_the_budget_covers(load, options, slots):
    for step in load.run(engine_for(options, slots), output=12):
        assert step.delayed == []
