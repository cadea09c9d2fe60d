"""A chat that comes upon embeddings alone gets one step with nothing but prefills."""

from __future__ import annotations

from pathlib import Path

from bare_scheduler import answer, make_scheduler, request
from engine_driver import embed, generate

from orthrus.engine.compat import RequestStatus
from orthrus.engine.first_token import FirstToken
from orthrus.engine.scheduler import MixedScheduler
from orthrus.policy.options import PolicyOptions


def burst(tiny_model: Path, **kwargs):
    """A scheduler whose first step of 128 embedding tokens is over; 4 times 60 tokens came."""
    orthrus = {"mixed_step_tokens": 64} | kwargs.pop("orthrus", {})
    scheduler = make_scheduler(MixedScheduler, tiny_model, orthrus=orthrus, **kwargs)
    for i in range(4):
        scheduler.add_request(request(f"e{i}", 60, embed()))
    assert step(scheduler) == {"e0": 60, "e1": 60, "e2": 8}
    return scheduler


def step(scheduler) -> dict[str, int]:
    output = scheduler.schedule()
    answer(scheduler, output)
    return output.num_scheduled_tokens


def chat(name: str, length: int):
    return request(name, length, generate(16))


def test_chats_have_a_step_alone_and_then_embeddings_have_theirs_again(tiny_model: Path):
    scheduler = burst(tiny_model)
    scheduler.add_request(chat("g0", 16))
    scheduler.add_request(chat("g1", 24))
    assert step(scheduler) == {"g0": 16, "g1": 24}
    assert step(scheduler) == {"g0": 1, "g1": 1, "e2": 52, "e3": 12}


def test_beside_a_decode_a_step_is_full(tiny_model: Path):
    scheduler = burst(tiny_model)
    scheduler.add_request(chat("g0", 16))
    assert step(scheduler) == {"g0": 16}
    scheduler.add_request(chat("g1", 16))
    assert sum(step(scheduler).values()) == 65


def test_without_a_target_or_a_bound_every_step_is_full(tiny_model: Path):
    for orthrus, tokens in (({"policy_options": {"ttft_target_s": 0}}, 64), ({"mixed_step_tokens": 0}, 128)):
        scheduler = burst(tiny_model, orthrus=orthrus)
        scheduler.add_request(chat("g", 16))
        assert sum(step(scheduler).values()) == tokens


def test_a_prompt_longer_than_a_step_shares_it_as_any_other(tiny_model: Path):
    scheduler = burst(tiny_model)
    scheduler.add_request(chat("g", 100))
    held = step(scheduler)
    assert sum(held.values()) == 64
    assert held["e2"] > 0


def test_one_that_does_not_start_shortens_one_step_only(tiny_model: Path):
    scheduler = burst(tiny_model)
    scheduler.add_request(chat("g", 16))
    first_token = FirstToken(scheduler, PolicyOptions(), scheduler._outlook)
    assert [first_token.tokens(64) for _ in range(3)] == [16, 64, 64]
    scheduler.finish_requests(["g"], RequestStatus.FINISHED_ABORTED)
    scheduler.add_request(chat("next", 10))
    assert [first_token.tokens(64) for _ in range(2)] == [10, 64]


def test_prefills_in_debt_cut_no_step_but_have_half_of_it(tiny_model: Path):
    for owed, scheduled in ((40.0, {"g": 40, "e2": 24}), (39.5, {"g": 40}), (64.0, {"g": 32, "e2": 32})):
        scheduler = burst(tiny_model)
        scheduler.add_request(chat("g", 40))
        scheduler.mix_policy._credit = owed
        assert step(scheduler) == scheduled


def test_no_two_steps_running_are_cut_for_chats_alone(tiny_model: Path):
    """Chats of a single token never decode, so each of them would have a step of its own for ever."""
    scheduler = burst(tiny_model)
    held = []
    for i in range(4):
        scheduler.add_request(request(f"g{i}", 16, generate(1)))
        held.append(step(scheduler))
    assert held == [{"g0": 16}, {"g1": 16, "e2": 48}, {"g2": 16}, {"g3": 16, "e2": 4, "e3": 44}]
