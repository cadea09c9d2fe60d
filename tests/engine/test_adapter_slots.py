"""Adapter slots, shared by both kinds: never more adapters than slots, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_scheduler import answer, make_scheduler, request
from engine_driver import embed, generate

from orthrus.engine.scheduler import MixedScheduler

pytestmark = pytest.mark.engine

LORA = {"enable_lora": True, "max_lora_rank": 8}


@pytest.mark.parametrize("policy", ["fcfs", "homogeneous", "ibs"])
@pytest.mark.parametrize("slots", [1, 2])
def test_never_more_adapters_than_slots(policy: str, slots: int, tiny_model: Path) -> None:
    scheduler = make_scheduler(
        MixedScheduler, tiny_model, orthrus={"policy": policy}, max_loras=slots, **LORA
    )
    adapters = {}
    for i in range(24):
        name, adapter = f"request-{i}", i % 4
        adapters[name] = adapter
        scheduler.add_request(request(name, 20 + 17 * i % 90, embed() if i % 3 else generate(6), adapter))
    finished: set[str] = set()
    for _ in range(300):
        output = scheduler.schedule()
        assert len({adapters[name] for name in output.num_scheduled_tokens} - {0}) <= slots
        finished |= answer(scheduler, output)
    assert finished == set(adapters)
    assert not any(scheduler.check_idle().values())


@pytest.mark.parametrize("policy", ["fcfs", "homogeneous", "ibs"])
@pytest.mark.parametrize("stream", ["embed", "generate"])
def test_a_stream_on_one_adapter_does_not_starve_the_other_kind(
    policy: str, stream: str, tiny_model: Path
) -> None:
    scheduler = make_scheduler(MixedScheduler, tiny_model, orthrus={"policy": policy}, max_loras=1, **LORA)
    flowing, other = (embed(), generate(3)) if stream == "embed" else (generate(3), embed())
    finished: set[str] = set()
    for step in range(60):
        scheduler.add_request(request(f"flow-{step}", 90, flowing, adapter=1))
        if step == 5:
            scheduler.add_request(request("other", 50, other, adapter=2))
        finished |= answer(scheduler, scheduler.schedule())
        if "other" in finished:
            break
    assert "other" in finished
    assert "flow-0" in finished
