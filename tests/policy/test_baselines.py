"""FCFS and homogeneous steps."""

from hypothesis import given, settings
from hypothesis import strategies as st
from policy_harness import Replica, queue, shape, tokens, view

from orthrus.policy.baselines import FirstComeFirstServed, Homogeneous
from orthrus.policy.options import PolicyOptions
from orthrus.policy.queues import KindQueue
from orthrus.policy.work import Chunk, Kind, Refusal

EMBED, PREFILL, DECODE = Kind.EMBED, Kind.PREFILL, Kind.DECODE


def arrivals(*requests, in_flight=()):
    """Both queues from (kind, length) in order of arrival; ids are a, b, c, ..."""
    queues = {kind: KindQueue(kind) for kind in (EMBED, PREFILL)}
    for number, (kind, length) in enumerate(requests):
        request_id = "abcdefgh"[number]
        queues[kind].add(request_id, length, number, in_flight=request_id in in_flight)
    return queues[EMBED], queues[PREFILL]


def test_fcfs_merges_both_kinds_by_arrival():
    queues = arrivals((EMBED, 10), (PREFILL, 20), (EMBED, 30), (PREFILL, 40))
    assert shape(FirstComeFirstServed().plan(view(70, *queues))) == [
        ("a", 10),
        ("b", 20),
        ("c", 30),
        ("d", 10),
    ]


def test_fcfs_takes_work_in_flight_first():
    queues = arrivals((EMBED, 10), (PREFILL, 20), (EMBED, 30), in_flight="c")
    assert shape(FirstComeFirstServed().plan(view(45, *queues))) == [("c", 30), ("a", 10), ("b", 5)]


def test_fcfs_prefill_chunk_lets_others_pass_and_leaves_no_budget():
    policy = FirstComeFirstServed(PolicyOptions(prefill_chunk=16))
    queues = arrivals((PREFILL, 100), (EMBED, 10), (PREFILL, 20))
    assert shape(policy.plan(view(30, *queues))) == [("a", 16), ("b", 10), ("c", 4)]
    assert shape(policy.plan(view(100, *queues))) == [
        ("a", 16), ("b", 10), ("c", 16), ("a", 16), ("c", 4), ("a", 16), ("a", 16), ("a", 6),
    ]  # fmt: skip


def test_fcfs_refused_head_closes_its_kind():
    queues = arrivals((PREFILL, 100), (EMBED, 10), (PREFILL, 20))
    step = view(64, *queues, admit=lambda item: Refusal.KV_BLOCKS if item.request_id == "a" else None)
    plan = FirstComeFirstServed().plan(step)
    assert shape(plan) == [("b", 10)]
    assert plan.refused == {PREFILL: Refusal.KV_BLOCKS}


def test_fcfs_spare_goes_on_with_waiting_requests():
    queues = arrivals((PREFILL, 20), (EMBED, 10), (PREFILL, 20))
    assert FirstComeFirstServed().plan(view(24, *queues, spare=10)).chunks == [
        Chunk("a", PREFILL, 20),
        Chunk("b", EMBED, 4),
        Chunk("b", EMBED, 6, spare=True),
        Chunk("c", PREFILL, 4, spare=True),
    ]


def test_homogeneous_steps_take_turns():
    policy = Homogeneous()
    queues = queue(EMBED, 1000), queue(PREFILL, 1000)
    kinds = []
    for _ in range(4):
        plan = policy.plan(view(64, *queues, decode_tokens=6))
        kinds.append((plan.decode, {chunk.kind for chunk in plan.chunks}, sum(c.tokens for c in plan.chunks)))
        policy.settle({**tokens(plan), DECODE: 6 if plan.decode else 0})
    # an embedding step also uses the tokens reserved for the decodes that it holds back
    assert kinds == [(True, {PREFILL}, 64), (False, {EMBED}, 70)] * 2


def test_homogeneous_runs_the_only_kind_with_work():
    policy = Homogeneous()
    for _ in range(2):
        plan = policy.plan(view(64, queue(EMBED, 1000), queue(PREFILL)))
        policy.settle(tokens(plan))
        assert (plan.decode, tokens(plan)) == (False, {EMBED: 64, PREFILL: 0})
    for _ in range(2):
        plan = policy.plan(view(64, queue(EMBED), queue(PREFILL), decode_tokens=9))
        policy.settle({DECODE: 9})
        assert (plan.decode, plan.chunks) == (True, [])


def test_homogeneous_does_not_lose_a_step_to_a_refused_head():
    queues = queue(EMBED, 50), queue(PREFILL, 50)
    for refused, ran in ((PREFILL, EMBED), (EMBED, PREFILL)):
        policy = Homogeneous()
        for _ in range(3):
            asked = []

            def admit(item, refused=refused, asked=asked):
                asked.append(item.request_id)
                return Refusal.SEQUENCE_SLOTS if item.kind is refused else None

            plan = policy.plan(view(64, *queues, admit=admit))
            assert tokens(plan) == {refused: 0, ran: 50}
            assert len(asked) == len(set(asked))
            policy.settle(tokens(plan))


def test_homogeneous_gives_the_turn_away_when_the_engine_ran_nothing():
    policy = Homogeneous()
    queues = queue(EMBED, 50), queue(PREFILL, 50)
    policy.settle({PREFILL: 1})
    assert not policy.plan(view(64, *queues, decode_tokens=4)).decode
    policy.settle({})
    assert policy.plan(view(64, *queues, decode_tokens=4)).decode


@given(
    st.sampled_from([FirstComeFirstServed, Homogeneous]),
    st.lists(st.tuples(st.sampled_from([EMBED, PREFILL]), st.integers(1, 200)), max_size=25),
    st.integers(1, 128),
    st.integers(0, 50),
    st.integers(0, 5),
    st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_all_work_ends_within_the_budget_and_in_order(policy, requests, budget, chunk, output, slots):
    replica = Replica(policy(PolicyOptions(prefill_chunk=chunk)), budget, output=output, slots=slots)
    for kind, length in requests:
        replica.submit(kind, length)
    work = sum(length for _, length in requests)
    for _ in range(2 * work + 12 * len(requests) + 2):
        step_view = replica.view()
        plan = replica.step()
        planned = tokens(plan)
        if plan.decode:
            assert sum(planned.values()) <= step_view.budget
        else:
            assert planned[PREFILL] == 0
            assert sum(planned.values()) <= budget
        if policy is Homogeneous:
            assert 0 in planned.values()
    assert sorted(replica.done) == sorted(replica.first_run)
    assert len(replica.done) == len(requests)
    for kind in (EMBED, PREFILL):
        started = [int(name.split("-")[1]) for name in replica.first_run if name.startswith(kind)]
        assert started == sorted(started)
