"""IBS, case by case: who takes the next opportunity, what it costs, and what closes a kind."""

import pytest
from policy_harness import queue, shape, tokens, view

from orthrus.policy.ibs import IntraBatchScheduler
from orthrus.policy.options import PolicyOptions
from orthrus.policy.work import Chunk, Kind, Refusal

EMBED, PREFILL, DECODE = Kind.EMBED, Kind.PREFILL, Kind.DECODE


def ibs(**options):
    """The paper's policy: without a TTFT target, unless the test sets one."""
    return IntraBatchScheduler(PolicyOptions(**{"ttft_target_s": 0, **options}))


def test_equal_work_alternates_and_generation_wins_the_full_tie():
    plan = ibs(embed_chunk=10, prefill_chunk=10).plan(view(40, queue(EMBED, 100), queue(PREFILL, 100)))
    assert [chunk.kind for chunk in plan.chunks] == [PREFILL, EMBED, PREFILL, EMBED]


def test_tie_goes_to_the_kind_with_more_remaining_work():
    plan = ibs(embed_chunk=10, prefill_chunk=10).plan(view(10, queue(EMBED, 101), queue(PREFILL, 100)))
    assert shape(plan) == [("embed-0", 10)]


def test_shares_follow_remaining_tokens_not_request_counts():
    policy = ibs(embed_chunk=10, prefill_chunk=10)
    plan = policy.plan(view(80, queue(EMBED, *[30] * 10), queue(PREFILL, 100)))
    assert tokens(plan) == {EMBED: 60, PREFILL: 20}


def test_credit_arithmetic_of_one_step():
    policy = ibs(embed_chunk=16, prefill_chunk=16)
    step = view(32, queue(EMBED, 300), queue(PREFILL, 100))
    assert shape(policy.plan(step)) == [("embed-0", 16), ("prefill-0", 16)]
    assert policy.state()["credit_embed"] == 0  # planning moves nothing
    policy.settle({EMBED: 16, PREFILL: 16})
    # embeddings: grew by 32 * 3/4, paid 16
    assert policy.state()["credit_embed"] == pytest.approx(8)
    assert policy.state()["credit_prefill"] == pytest.approx(-8)


def test_settles_on_what_ran_rather_than_on_the_plan():
    policy = ibs(embed_chunk=16, prefill_chunk=16)
    policy.plan(view(32, queue(EMBED, 300), queue(PREFILL, 100)))
    policy.settle({EMBED: 16, PREFILL: 4})
    assert policy.state()["credit_embed"] == pytest.approx(20 * 0.75 - 16)


def test_credit_carries_over_to_the_next_step():
    policy = ibs(embed_chunk=10, prefill_chunk=10)
    first = policy.plan(view(10, queue(EMBED, 200), queue(PREFILL, 200)))
    policy.settle(tokens(first))
    second = policy.plan(view(10, queue(EMBED, 200), queue(PREFILL, 190)))
    assert (first.chunks[0].kind, second.chunks[0].kind) == (PREFILL, EMBED)


def test_a_queue_that_runs_empty_forfeits_its_credit():
    policy = ibs(embed_chunk=10)
    policy.plan(view(60, queue(EMBED, 10), queue(PREFILL, 1000)))
    policy.settle({EMBED: 10, PREFILL: 50})
    assert policy.state()["credit_embed"] == 0


def test_credit_is_dropped_when_a_queue_was_emptied_by_aborts():
    policy = ibs(embed_chunk=10, prefill_chunk=10)
    policy.plan(view(10, queue(EMBED, 200), queue(PREFILL, 200)))
    policy.settle({PREFILL: 10})
    assert policy.state()["credit_embed"] == pytest.approx(5)
    policy.plan(view(10, queue(EMBED), queue(PREFILL, 190)))
    policy.settle({PREFILL: 10})
    assert policy.state()["credit_embed"] == 0


def test_credit_is_dropped_while_the_engine_goes_on_without_plans():
    policy = ibs(embed_chunk=10, prefill_chunk=10)
    policy.plan(view(10, queue(EMBED, 200), queue(PREFILL, 200)))
    policy.settle({PREFILL: 10})
    policy.stand_by()
    assert policy.state()["credit_embed"] == policy.state()["embed_share"] == 0


def test_one_kind_alone_gets_the_whole_budget():
    assert tokens(ibs(embed_chunk=64).plan(view(200, queue(EMBED, 500), queue(PREFILL)))) == {
        EMBED: 200,
        PREFILL: 0,
    }
    assert shape(ibs().plan(view(200, queue(EMBED), queue(PREFILL, 500)))) == [("prefill-0", 200)]


def test_a_head_with_tokens_left_stays_the_head_and_the_last_chunk_may_be_short():
    plan = ibs(embed_chunk=64).plan(view(200, queue(EMBED, 100, 100), queue(PREFILL)))
    assert shape(plan) == [("embed-0", 64), ("embed-0", 36), ("embed-1", 64), ("embed-1", 36)]
    plan = ibs(embed_chunk=64).plan(view(70, queue(EMBED, 100), queue(PREFILL)))
    assert shape(plan) == [("embed-0", 64), ("embed-0", 6)]


def test_in_flight_before_waiting():
    plan = ibs(embed_chunk=64).plan(view(64, queue(EMBED, 50, 50, in_flight=(1,)), queue(PREFILL)))
    assert shape(plan) == [("embed-1", 50), ("embed-0", 14)]


@pytest.mark.parametrize("closed", [EMBED, PREFILL])
def test_an_inadmissible_giant_closes_its_own_kind_only(closed):
    policy = ibs(embed_chunk=64, prefill_chunk=64)
    queues = {kind: queue(kind, *([100_000] if kind is closed else [500] * 8)) for kind in (EMBED, PREFILL)}
    other = PREFILL if closed is EMBED else EMBED
    for _ in range(5):
        asked = []

        def admit(item, asked=asked):
            asked.append(item.request_id)
            return Refusal.KV_BLOCKS if item.kind is closed else None

        plan = policy.plan(view(256, queues[EMBED], queues[PREFILL], admit=admit))
        assert tokens(plan) == {closed: 0, other: 256}
        assert plan.refused == {closed: Refusal.KV_BLOCKS}
        assert len(asked) == len(set(asked))
        policy.settle(tokens(plan))
    assert policy.state()["credit_embed"] == 0  # nothing saved up while shut out

    # Admitted at last, the giant takes one opportunity or more, and the other kind's turn still comes.
    steps = 0
    while True:
        steps += 1
        plan = policy.plan(view(256, queues[EMBED], queues[PREFILL]))
        policy.settle(tokens(plan))
        if tokens(plan)[other]:
            break
    assert steps <= 1 + 64 // 256 + 1


def test_a_refused_head_may_be_admitted_in_the_next_step():
    policy = ibs()
    queues = queue(EMBED, 10), queue(PREFILL, 10)
    refused = policy.plan(view(64, *queues, admit=lambda item: Refusal.ADAPTER_SLOTS))
    assert refused.chunks == []
    assert refused.refused == {EMBED: Refusal.ADAPTER_SLOTS, PREFILL: Refusal.ADAPTER_SLOTS}
    assert tokens(policy.plan(view(64, *queues))) == {EMBED: 10, PREFILL: 10}


def test_admission_is_not_asked_for_requests_beyond_the_budget():
    asked = []
    step = view(30, queue(EMBED, *[20] * 9), queue(PREFILL), admit=lambda item: asked.append(item.request_id))
    ibs().plan(step)
    assert asked == ["embed-0", "embed-1"]


def test_spare_goes_to_waiting_requests_only_and_is_marked():
    policy = ibs(embed_chunk=64)
    step = view(64, queue(EMBED, 40, 40, 40, in_flight=(0,)), queue(PREFILL), spare=50)
    assert policy.plan(step).chunks == [
        Chunk("embed-0", EMBED, 40),
        Chunk("embed-1", EMBED, 24),
        Chunk("embed-1", EMBED, 16, spare=True),
        Chunk("embed-2", EMBED, 34, spare=True),
    ]
    step = view(30, queue(EMBED, 40, 40, in_flight=(0,)), queue(PREFILL), spare=50)
    assert policy.plan(step).chunks == [Chunk("embed-0", EMBED, 30)]


def test_spare_does_not_change_credits():
    states = []
    for spare in (0, 500):
        policy = ibs(embed_chunk=16, prefill_chunk=16)
        plan = policy.plan(view(48, queue(EMBED, 300), queue(PREFILL, 90), spare=spare))
        policy.settle(tokens(plan))
        states.append(policy.state())
    assert states[0] == states[1]


def test_no_spare_when_the_budget_was_not_used_up():
    asked = []
    step = view(100, queue(EMBED, 40), queue(PREFILL), spare=50, admit=lambda item: asked.append(item))
    assert not any(chunk.spare for chunk in ibs().plan(step).chunks)


def test_bias_multiplies_the_embeddings_weight():
    plan = ibs(embed_chunk=10, prefill_chunk=10, embed_bias=3).plan(
        view(80, queue(EMBED, 400), queue(PREFILL, 400))
    )
    assert tokens(plan) == {EMBED: 60, PREFILL: 20}


def test_upper_bound_on_the_embedding_share_counts_the_whole_step():
    policy = ibs(embed_chunk=10, prefill_chunk=10, max_embed_share=0.25)
    plan = policy.plan(view(80, queue(EMBED, 4000), queue(PREFILL, 400), decode_tokens=20))
    assert tokens(plan) == {EMBED: 25, PREFILL: 55}
    plan = policy.plan(view(80, queue(EMBED, 4000), queue(PREFILL), decode_tokens=20))
    assert tokens(plan) == {EMBED: 25, PREFILL: 0}
    assert plan.refused == {}


def test_the_bound_does_not_lose_a_token_to_rounding():
    plan = ibs(max_embed_share=0.29).plan(view(100, queue(EMBED, 500), queue(PREFILL)))
    assert tokens(plan)[EMBED] == 29  # 0.29 * 100 is 28.999999999999996


def test_decode_tokens_count_as_generation_only_on_request():
    def run(**options):
        policy = ibs(embed_chunk=10, prefill_chunk=10, **options)
        queues = queue(EMBED, 300), queue(PREFILL, 300)
        plan = policy.plan(view(80, *queues, decode_tokens=20, expected_decode_tokens=900))
        policy.settle({**tokens(plan), DECODE: 20})
        return tokens(plan)[EMBED], policy.state()["credit_embed"]

    assert run() == (40, 0)
    # a fifth of 100 tokens is 20: the 20 decodes are generation's as well, and one opportunity of 10 is owed
    assert run(count_decode=True) == (20, pytest.approx(0))


@pytest.mark.parametrize("decoded", [20, 0])
def test_decodes_that_did_not_run_leave_no_room_for_charging_free_prefill_tokens(decoded):
    """Embeddings are at their bound after 25 of 100 tokens, so the prefills' other 50 are free."""
    policy = ibs(embed_chunk=25, prefill_chunk=5, count_decode=True, max_embed_share=0.25)
    policy.plan(view(80, queue(EMBED, 900), queue(PREFILL, 280), decode_tokens=20, expected_decode_tokens=20))
    policy.settle({EMBED: 25, PREFILL: 55, DECODE: decoded})
    # Embeddings have three quarters of the work: they went first and were owed their part of the decodes.
    assert policy.state()["credit_embed"] == pytest.approx(decoded * 0.75 - 25 * 0.25)


def step_of(policy, view):
    """Embedding tokens of one step and what embeddings are owed after it."""
    ran = tokens(policy.plan(view))
    policy.settle(ran)
    return ran[EMBED], policy.state()["credit_embed"]


def test_ttft_target_gives_late_prefills_a_whole_step_then_half_of_each_until_the_debt_is_below_a_budget():
    policy = ibs(embed_chunk=100, ttft_target_s=1.0)
    late = view(100, queue(EMBED, 900), queue(PREFILL, 300), wait_s=0.6)
    calm = view(100, queue(EMBED, 900), queue(PREFILL, 300), wait_s=0.4)
    assert tokens(policy.plan(calm)) == {EMBED: 100, PREFILL: 0}
    assert [step_of(policy, late) for _ in range(3)] == [(0, 75), (50, 100), (50, 87.5)]
    assert [step_of(policy, late) for _ in range(3)] == [(0, 162.5), (50, 150), (50, 137.5)]
    for _ in range(3):  # not late any more: the debt is paid back
        assert step_of(policy, calm)[0] == 100
    assert policy.state()["credit_embed"] == 62.5


def test_a_late_chat_does_not_wait_until_the_debt_of_an_earlier_one_is_paid():
    """A prompt upon 16 times 485 leaves more than a step of debt; it is cancelled, and a chat waits."""
    policy = ibs(ttft_target_s=0.5)
    for prefill, embed in ((1000, 0), (744, 128)):
        run = step_of(policy, view(256, queue(EMBED, 7760), queue(PREFILL, prefill), wait_s=1.0))
        assert run[0] == embed
    assert policy.state()["credit_embed"] > 256
    plan = policy.plan(view(256, queue(EMBED, 7760), queue(PREFILL, 20), wait_s=0.3))
    assert tokens(plan) == {EMBED: 236, PREFILL: 20}


def test_a_short_embedding_among_late_prompts_waits_for_one_step_only():
    policy = ibs(ttft_target_s=0.5)
    late = view(256, queue(EMBED, 10), queue(PREFILL, 1500, 1500, 1500), wait_s=60.0)
    for _ in range(3):
        assert [step_of(policy, late)[0] for _ in range(2)] == [0, 10]


@pytest.mark.parametrize("between", ["refused", "no budget", "not late"])
def test_a_half_step_stays_due_until_embeddings_have_been_given_something(between):
    policy = ibs(ttft_target_s=0.5)
    queues = queue(EMBED, 100), queue(PREFILL, *[1000] * 200)
    late = view(256, *queues, wait_s=1.0)
    assert step_of(policy, late)[0] == 0
    other = {
        "refused": view(
            256, *queues, wait_s=1.0, admit=lambda item: Refusal.KV_BLOCKS if item.kind is EMBED else None
        ),
        "no budget": view(0, *queues, wait_s=1.0),
        "not late": view(256, queue(EMBED, 100), queue(PREFILL, 100_000), wait_s=0.0),
    }[between]
    if between == "not late":
        policy._credit = -50.0
    assert step_of(policy, other)[0] == 0
    assert policy.state()["half_due"] == 1
    assert step_of(policy, late)[0] == 100


def test_a_step_that_prefills_could_not_use_does_not_count_as_theirs():
    policy = ibs(ttft_target_s=0.5)
    queues = queue(EMBED, 10_000), queue(PREFILL, 10_000)
    refused = view(
        256, *queues, wait_s=1.0, admit=lambda item: Refusal.KV_BLOCKS if item.kind is PREFILL else None
    )
    assert step_of(policy, refused)[0] == 256
    assert step_of(policy, view(256, *queues, wait_s=1.0))[0] == 0


def test_a_credit_never_exceeds_the_largest_opportunity_whatever_the_engine_runs():
    policy = ibs(embed_chunk=16, prefill_chunk=32)
    for _ in range(50):
        policy.plan(view(64, queue(EMBED, 300), queue(PREFILL, 300)))
        policy.settle({PREFILL: 64})
    assert policy.state()["credit_embed"] == 32


def test_settle_refuses_what_cannot_be():
    policy = ibs()
    policy.settle({})
    with pytest.raises(RuntimeError, match="plan"):
        policy.settle({EMBED: 1})
    with pytest.raises(ValueError, match="negative"):
        policy.settle({EMBED: -1})


def test_nothing_to_do():
    assert ibs().plan(view(64, queue(EMBED), queue(PREFILL))).chunks == []
    assert ibs().plan(view(0, queue(EMBED, 5), queue(PREFILL, 5), decode_tokens=8, spare=9)).chunks == []
