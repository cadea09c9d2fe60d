"""What is followed from step to step is what a scan of all running requests would find."""

import os
import random
import weakref
from pathlib import Path

import pytest
from bare_scheduler import answer, make_scheduler, request
from engine_driver import embed, generate
from vllm.v1.request import RequestStatus

from orthrus.engine.running_prompts import RunningPrompts
from orthrus.engine.scheduler import MixedScheduler

pytestmark = pytest.mark.engine


def scan(running):
    return {r.request_id for r in running if r.is_prefill_chunk or r.pooling_params is not None}


def test_a_random_life_with_preemptions_aborts_and_pauses_of_embeddings(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = {"steps": 0, "prompts": 0, "preempted": 0}
    current = RunningPrompts.current

    def checked(self, running):
        found = current(self, running)
        assert {r.request_id for r in found} == scan(running)
        assert len(found) == len(scan(running))
        seen["steps"] += 1
        seen["prompts"] += len(found)
        return found

    monkeypatch.setattr(RunningPrompts, "current", checked)
    for seed, policy in enumerate(["fcfs", "ibs", "homogeneous"] * 2):
        live(seed, policy, tiny_model, seen)
    assert seen["steps"] > 600
    assert seen["prompts"] > 500
    assert seen["preempted"] > 10


def live(seed: int, policy: str, model: Path, seen: dict[str, int]) -> None:
    rng = random.Random(seed)
    scheduler = make_scheduler(
        MixedScheduler,
        model,
        blocks=24,
        # A recorder follows the prompts in steps without embeddings, too.
        orthrus={"policy": policy, "trace_steps": os.devnull if seed % 2 else None},
        max_num_batched_tokens=64,
        max_num_seqs=8,
    )
    for step in range(250):
        # Embeddings come in bursts, so that steps of generations alone lie between them.
        if rng.random() < 0.25:
            params = embed() if step // 25 % 2 else generate(rng.randrange(1, 60))
            scheduler.add_request(request(f"r{step}", rng.randrange(2, 300), params))
        if scheduler.requests and rng.random() < 0.05:
            victim = rng.choice(sorted(scheduler.requests))
            scheduler.finish_requests([victim], RequestStatus.FINISHED_ABORTED)
        output = scheduler.schedule()
        seen["preempted"] += len(output.preempted_req_ids or ())
        answer(scheduler, output)


def test_a_finished_request_is_let_go_before_the_next_step_is_planned(tiny_model: Path):
    scheduler = make_scheduler(MixedScheduler, tiny_model)
    gone = []
    for step in range(4):
        for name, params in ((f"e{step}", embed()), (f"g{step}", generate(1))):
            new = request(name, 20, params)
            gone.append(weakref.ref(new))
            scheduler.add_request(new)
        del new
        assert answer(scheduler, scheduler.schedule()) == {f"e{step}", f"g{step}"}
        assert [ref() for ref in gone] == [None] * len(gone)
