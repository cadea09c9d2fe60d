"""Data-parallel prefill throttling: a rank whose turn it is not runs its decodes only, and loses nothing."""

from pathlib import Path

import pytest
from bare_scheduler import answer, make_scheduler, request
from engine_driver import embed, generate

from orthrus.engine.scheduler import MixedScheduler
from orthrus.policy.work import Kind

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("policy", ["ibs", "fcfs", "homogeneous"])
def test_a_throttled_step_runs_decodes_only(policy: str, tiny_model: Path):
    scheduler = make_scheduler(MixedScheduler, tiny_model, orthrus={"policy": policy})
    scheduler.add_request(request("writer", 20, generate(40)))
    answer(scheduler, scheduler.schedule())
    scheduler.add_request(request("text", 300, embed()))
    scheduler.add_request(request("prompt", 300, generate(2)))
    held = 0
    computed = {"text": 0, "prompt": 0}
    for step in range(40):
        # vLLM lifts the throttle while more wait than a step could start.
        throttled = step % 3 != 2 and not scheduler.prefill_capacity_bound
        output = scheduler.schedule(throttle_prefills=step % 3 != 2)
        got = output.num_scheduled_tokens
        decodes = {name for name in got if computed.get(name, 300) >= 300}
        if throttled and "writer" in got:
            assert set(got) == decodes
            held += 1
        for name in computed:
            computed[name] += got.get(name, 0)
        answer(scheduler, output)
    assert held >= 4
    assert computed == {"text": 300, "prompt": 301}
    totals = scheduler.mix_policy.state()
    assert totals[f"tokens_{Kind.EMBED}"] == 300
    assert 0 < totals[f"tokens_{Kind.PREFILL}"] <= 300  # the rest ran in steps without embeddings


def test_without_decodes_nothing_is_held_back(tiny_model: Path):
    scheduler = make_scheduler(MixedScheduler, tiny_model, orthrus={"policy": "ibs"})
    scheduler.add_request(request("text", 100, embed()))
    scheduler.add_request(request("prompt", 20, generate(2)))
    assert set(scheduler.schedule(throttle_prefills=True).num_scheduled_tokens) == {"text", "prompt"}
