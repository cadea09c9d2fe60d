"""Adapter slots, shared by both kinds: never more adapters than slots, nobody waits for ever, and a request
without a slot holds back neither its own kind nor the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_scheduler import answer, make_scheduler, request
from engine_driver import embed, generate
from vllm.v1.core.sched.scheduler import Scheduler

from orthrus.engine.embedding import EmbeddingSpec
from orthrus.engine.scheduler import MixedScheduler
from orthrus.pooling.heads import Head

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


@pytest.mark.parametrize("policy", ["fcfs", "homogeneous", "ibs"])
@pytest.mark.parametrize("kind", ["embed", "generate"])
def test_a_request_without_a_slot_is_passed_over(policy: str, kind: str, tiny_model: Path) -> None:
    scheduler = make_scheduler(MixedScheduler, tiny_model, orthrus={"policy": policy}, max_loras=1, **LORA)
    scheduler.add_request(request("holder", 20, generate(20), adapter=1))
    answer(scheduler, scheduler.schedule())
    params = embed() if kind == "embed" else generate(2)
    scheduler.add_request(request("mixed", 10, embed()))
    for name, adapter in (("blocked", 2), ("base", 0), ("joins", 1)):
        scheduler.add_request(request(name, 20, params, adapter))
    started: list[str] = []
    for _ in range(2):
        output = scheduler.schedule()
        started += [new.req_id for new in output.scheduled_new_reqs if new.req_id != "mixed"]
        answer(scheduler, output)
    assert started == ["base", "joins"]
    finished: set[str] = set()
    while scheduler.requests:
        finished |= answer(scheduler, scheduler.schedule())
    assert "blocked" in finished
    assert not any(scheduler.check_idle().values())


def test_stock_vllm_starts_the_same_requests_in_the_same_order(tiny_model: Path) -> None:
    order = {}
    for cls in (Scheduler, MixedScheduler):
        scheduler = make_scheduler(cls, tiny_model, max_loras=2, **LORA)
        if cls is MixedScheduler:
            # An embedding that is always elsewhere, so that every step is planned by us.
            scheduler.embeddings["elsewhere"] = EmbeddingSpec(Head.MEAN, True, None)
        starts = order[cls] = []
        for i in range(16):
            scheduler.add_request(request(f"r{i}", 20 + i, generate(2 + i % 5), i % 5))
        for _ in range(60):
            output = scheduler.schedule()
            starts.append([new.req_id for new in output.scheduled_new_reqs])
            answer(scheduler, output)
    assert sum(map(len, order[Scheduler])) == 16
    assert order[MixedScheduler] == order[Scheduler]


@pytest.mark.parametrize("policy", ["fcfs", "homogeneous", "ibs"])
@pytest.mark.parametrize("kind", ["embed", "generate"])
def test_a_waiting_adapter_is_overtaken_by_one_batch_at_most(
    policy: str, kind: str, tiny_model: Path
) -> None:
    settings = {"policy": policy, "embed_slots": 0}
    scheduler = make_scheduler(
        MixedScheduler, tiny_model, orthrus=settings, max_loras=1, max_num_seqs=6, **LORA
    )
    params = embed() if kind == "embed" else generate(3)
    started: list[str] = []
    for step in range(80):
        scheduler.add_request(request(f"base-{step}", 5, embed()))
        scheduler.add_request(request(f"flow-{step}", 30, params, adapter=1))
        if step == 8:
            scheduler.add_request(request("other", 30, params, adapter=2))
            started.clear()
        output = scheduler.schedule()
        started += [new.req_id for new in output.scheduled_new_reqs if not new.req_id.startswith("base")]
        answer(scheduler, output)
        if "other" in started:
            break
    later = [name for name in started if name != "other" and int(name.removeprefix("flow-")) > 8]
    assert "other" in started
    assert len(later) <= 6


def test_an_adapter_slot_is_not_kept_for_a_request_that_lacks_kv_blocks(tiny_model: Path) -> None:
    """The giant waits first for the only adapter slot, then for blocks; the other kind gets the slot."""
    scheduler = make_scheduler(MixedScheduler, tiny_model, blocks=18, max_loras=1, **LORA)
    scheduler.add_request(request("filler", 100, generate(60)))
    scheduler.add_request(request("holder", 20, generate(4), adapter=1))
    answer(scheduler, scheduler.schedule())
    scheduler.add_request(request("giant", 480, embed(), adapter=2))
    started: list[str] = []
    for step in range(12):
        if step == 1:
            scheduler.add_request(request("writer", 20, generate(2), adapter=3))
        output = scheduler.schedule()
        started += [new.req_id for new in output.scheduled_new_reqs]
        answer(scheduler, output)
    assert started == ["writer"]
