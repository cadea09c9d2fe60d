"""The inter-token latency target against steps whose time is a fixed part and one a token."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthrus.engine.itl_target import MIN_PROMPT_TOKENS, ItlTarget


def steps(target: ItlTarget, fixed: float, per_token: float, count: int, waiting: int = 10**6):
    """Run steps of at most 2048 prompt tokens; their prompt tokens and seconds."""
    target.forget_step()
    now, ran = 100.0, []
    for _ in range(count):
        held = int(min(2048, waiting, target.prompt_tokens(now, decodes=4)))
        target.ran(held)
        seconds = fixed + per_token * held
        ran.append((held, seconds))
        now += seconds
    return ran


@given(st.floats(0.001, 0.1), st.floats(1e-5, 5e-3), st.floats(0.05, 2))
def test_steps_come_to_last_as_long_as_the_target_or_are_shortest_or_whole(fixed, per_token, aim):
    """A step of n tokens lasts a + b n, the next has n aim / (a + b n): the miss shrinks by a / aim."""
    held, seconds = steps(ItlTarget(aim), fixed, per_token, 300)[-1]
    assert (
        held == MIN_PROMPT_TOKENS
        or (held == 2048 and seconds <= aim)
        or seconds == pytest.approx(aim, abs=1.5 * per_token + 0.02 * aim)
    )
    if held == MIN_PROMPT_TOKENS:
        assert fixed + per_token * (MIN_PROMPT_TOKENS + 2) >= aim


def test_a_missed_target_halves_a_step_at_most_and_room_lengthens_it_by_a_quarter():
    target = ItlTarget(0.1)
    assert [held for held, _ in steps(target, 0, 0.01, 3)] == [2048, 1024, 512]
    assert [held for held, _ in steps(target, 0, 0.00001, 3)] == [512, 640, 800]


def test_a_step_that_was_not_full_does_not_lengthen_the_next():
    target = ItlTarget(0.1)
    steps(target, 0, 0.01, 4)
    assert [held for held, _ in steps(target, 0, 0.00001, 9, waiting=50)] == [50] * 9
    target.forget_step()
    assert target.prompt_tokens(0, 4) == 256


def test_only_steps_with_decodes_right_after_one_another_are_measured():
    target = ItlTarget(0.1)
    for now, decodes in ((0, 4), (9, 0), (18, 4), (18.01, 0), (99, 4)):
        assert target.prompt_tokens(now, decodes) == inf
        target.ran(500)
    target.forget_step()
    assert target.prompt_tokens(200, 4) == inf
    target.ran(500)
    assert target.prompt_tokens(200.2, 4) == pytest.approx(250)
    assert target.prompt_tokens(200.2, 0) == inf  # nobody waits for a token
