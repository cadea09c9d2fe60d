"""The aim for a step's time against steps whose time is a fixed part and one a token."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthrus.engine.step_time import MIN_PROMPT_TOKENS, StepTime


def steps(step_time: StepTime, fixed: float, per_token: float, count: int, waiting: int = 10**6):
    """Run steps of at most 2048 prompt tokens; their prompt tokens and seconds."""
    ran = []
    for _ in range(count):
        held = int(min(2048, waiting, step_time.fits))
        seconds = fixed + per_token * held
        step_time.learn(held, seconds)
        ran.append((held, seconds))
    return ran


@given(st.floats(0.001, 0.1), st.floats(1e-5, 5e-3), st.floats(0.05, 2))
def test_steps_come_to_last_as_long_as_the_target_or_are_shortest_or_whole(fixed, per_token, aim):
    """A step of n tokens lasts a + b n, the next has n aim / (a + b n): the miss shrinks by a / aim."""
    held, seconds = steps(StepTime(aim), fixed, per_token, 300)[-1]
    assert (
        held == MIN_PROMPT_TOKENS
        or (held == 2048 and seconds <= aim)
        or seconds == pytest.approx(aim, abs=1.5 * per_token + 0.02 * aim)
    )
    if held == MIN_PROMPT_TOKENS:
        assert fixed + per_token * (MIN_PROMPT_TOKENS + 2) >= aim


def test_any_number_fits_until_a_step_took_longer():
    step_time = StepTime(0.1)
    step_time.learn(2048, 0.09)
    assert step_time.fits == inf


def test_a_missed_target_halves_a_step_at_most_and_room_lengthens_it_by_a_quarter():
    step_time = StepTime(0.1)
    assert [held for held, _ in steps(step_time, 0, 0.01, 3)] == [2048, 1024, 512]
    assert [held for held, _ in steps(step_time, 0, 0.00001, 3)] == [256, 320, 400]


def test_a_step_that_was_not_full_lengthens_the_next_only_if_the_room_shows_in_proportion():
    """With a fixed cost a short step proves less: 50 tokens in 0.06 s speak for 83 in 0.1 s, not for 256."""
    step_time = StepTime(0.1)
    steps(step_time, 0, 0.01, 3)
    steps(step_time, 0.05, 0.0002, 9, waiting=50)
    assert step_time.fits == 256
    steps(step_time, 0, 0.0002, 9, waiting=50)
    assert step_time.fits == pytest.approx(500)


def test_longer_steps_than_fit_bring_the_size_to_what_fits_and_no_further():
    """Whole budgets, once no chat is near, take longer than the aim again and again."""
    step_time = StepTime(0.25)
    found = []
    for _ in range(20):
        step_time.learn(2048, 2.56)
        found.append(step_time.fits)
    assert found[:4] == [1024, 512, 256, pytest.approx(200)]
    assert found[-1] == pytest.approx(200)


@given(st.floats(0.05, 1), st.lists(st.tuples(st.integers(1, 4096), st.floats(0, 60)), max_size=30))
def test_whatever_happened_the_size_comes_back(aim, past):
    step_time = StepTime(aim)
    for held, seconds in past:
        step_time.learn(held, seconds)
        assert step_time.fits >= MIN_PROMPT_TOKENS
    held, _ = steps(step_time, 0, aim / 300, 60)[-1]
    assert held == 2048 or held == pytest.approx(300, abs=1)
