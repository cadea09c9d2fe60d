"""Steps are small while a generation is about, and for a while after; else they take the whole budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_scheduler import answer, make_scheduler, request
from engine_driver import embed, generate

from orthrus.engine import step_size
from orthrus.engine.scheduler import MixedScheduler
from orthrus.engine.step_size import RECENT_S, StepSize


@pytest.fixture
def clock(monkeypatch):
    now = [5.0]
    monkeypatch.setattr(step_size.time, "monotonic", lambda: now[0])
    return now


def test_small_from_a_generation_until_some_time_after_it(clock):
    size = StepSize(256, 0)
    assert size.tokens(2048, 0, False) == 2048
    assert size.tokens(2048, 8, True) == 264
    clock[0] += RECENT_S - 0.1
    assert size.tokens(2048, 0, False) == 256
    clock[0] += 0.1
    assert size.tokens(2048, 0, False) == 2048
    size.saw_no_embeddings(generates=True)
    assert size.tokens(2048, 0, False) == 256


def test_never_more_than_the_engine_may_run_and_zero_is_no_bound(clock):
    small, off = StepSize(256, 0), StepSize(0, 0)
    assert (small.tokens(128, 100, True), off.tokens(2048, 100, True)) == (128, 2048)


def test_an_itl_target_shortens_steps_with_decodes_only(clock):
    size = StepSize(256, 0.2)
    assert size.tokens(2048, 8, True) == 264
    size.ran(256)
    clock[0] += 0.4
    assert size.tokens(2048, 8, True) == 8 + 128
    assert size.tokens(2048, 0, True) == 256
    clock[0] += RECENT_S
    assert size.tokens(2048, 0, False) == 2048


def test_without_a_bound_an_itl_target_holds_alone(clock):
    size = StepSize(0, 0.2)
    assert size.tokens(2048, 8, True) == 2048
    size.ran(2040)
    size.saw_no_embeddings(generates=True)  # the last step's time is not known any more
    clock[0] += 0.4
    assert size.tokens(2048, 8, True) == 2048
    size.ran(2040)
    clock[0] += 0.3
    assert size.tokens(2048, 8, True) == 8 + 1360


def test_a_step_is_timed_only_if_the_engine_did_not_sleep_after_it(clock):
    size = StepSize(0, 0.1)
    for seconds, decodes in ((9, 4), (9, 0), (0.01, 4), (99, 0)):
        assert size.tokens(2048, decodes, bool(decodes)) == 2048
        size.ran(500)
        clock[0] += seconds
    assert size.tokens(2048, 4, True) == 2048
    size.ran(500)
    clock[0] += 0.2
    assert size.tokens(2048, 4, True) == 4 + 250


def scheduler_with(tiny_model: Path, **orthrus):
    return make_scheduler(MixedScheduler, tiny_model, orthrus=orthrus)


def total(scheduler) -> int:
    return scheduler.schedule().total_num_scheduled_tokens


def answered(scheduler) -> int:
    """Run a whole step; its tokens."""
    output = scheduler.schedule()
    answer(scheduler, output)
    return output.total_num_scheduled_tokens


def test_beside_a_generation_a_step_holds_the_bound_and_alone_the_budget(tiny_model: Path):
    scheduler = scheduler_with(tiny_model, mixed_step_tokens=32, policy_options={"ttft_target_s": 0})
    for i in range(4):
        scheduler.add_request(request(f"e{i}", 60, embed()))
    assert total(scheduler) == 128
    scheduler.add_request(request("g", 8, generate(16)))
    assert total(scheduler) == 32
    assert scheduler.max_num_scheduled_tokens == 128


def test_slow_steps_become_short_where_there_is_an_itl_target(tiny_model: Path, clock):
    scheduler = scheduler_with(tiny_model, mixed_step_tokens=0, itl_target_s=0.1)
    scheduler.add_request(request("g", 8, generate(16)))
    answered(scheduler)
    for i in range(4):
        scheduler.add_request(request(f"e{i}", 400, embed()))
    held = []
    for _ in range(6):
        held.append(answered(scheduler))
        clock[0] += 0.02 + 0.002 * (held[-1] - 1)  # 40 prompt tokens fit
    assert held == [128, 64, 44, 41, 41, 41]


@pytest.mark.parametrize(
    ("settings", "tokens"), [({}, 256), ({"policy": "fcfs"}, None), ({"mixed_step_tokens": 0}, 0)]
)
def test_the_default_is_for_ibs_on_cpu(tiny_model: Path, settings, tokens):
    scheduler = scheduler_with(tiny_model, **settings)
    assert scheduler.settings.mixed_step_tokens == tokens


def test_the_empty_step_after_the_last_answer_is_no_generation(tiny_model: Path):
    scheduler = scheduler_with(tiny_model, mixed_step_tokens=32)
    for name in ("first", "second"):
        scheduler.add_request(request(name, 100, embed()))
        output = scheduler.schedule()
        answer(scheduler, output)
        assert output.num_scheduled_tokens == {name: 100}
        assert scheduler.has_finished_requests()
        assert scheduler.schedule().total_num_scheduled_tokens == 0
