"""Steps of embeddings that are discarded for a generation: computed again, they give the same."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bare_scheduler import BLOCK, answer, hashed, make_scheduler, request
from engine_driver import Job, assert_idle, embed, embed_all, generate, run, runner_of, scheduler_of, tokens

from orthrus.engine.arrival_flag import ArrivalFlag, open_flag
from orthrus.engine.compat import RequestStatus
from orthrus.engine.scheduler import MixedScheduler
from orthrus.engine.step_watch import WATCHED, StepDiscardedError, StepWatch, discarded

IBS = {"policy": "ibs", "policy_options": {"embed_chunk": 32}, "max_num_batched_tokens": 96}
HEADS = ("mean", "weighted_mean", "cls", "last")


def interrupt(llm: Any, monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool]) -> list[int]:
    """Let a generation seem to arrive in each step that may be discarded, `when` it says so; their tokens."""
    discards = scheduler_of(llm)._discards
    schedule, take_back, lost = discards.schedule, discards.take_back, []

    def schedule_and_arrive(plan: Any) -> Any:
        output = schedule(plan)
        if discards.is_watched and when():
            discards.arrived()
        return output

    def counted() -> int:
        lost.append(take_back())
        return lost[-1]

    monkeypatch.setattr(discards, "schedule", schedule_and_arrive)
    monkeypatch.setattr(discards, "take_back", counted)
    return lost


class Late:
    """A flag that is set after so many looks at it."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def __getitem__(self, _: int) -> bool:
        self.looks -= 1
        return self.looks < 0


def arrive_late(llm: Any, monkeypatch: pytest.MonkeyPatch, looks: Callable[[], int]) -> None:
    """Let the worker see an arrival after so many looks, in every step that may be discarded."""
    watch = runner_of(llm)._watch
    begin = watch.begin

    def begin_late(output: Any) -> None:
        begin(output)
        if watch._flag is not None:
            watch._flag = Late(looks())

    monkeypatch.setattr(watch, "begin", begin_late)


def documents() -> list[Job]:
    """Embeddings of every head, many behind a prefix that others have, too."""
    shared = tokens(1, 300)
    jobs = []
    for i in range(24):
        prompt = (shared[: BLOCK * (i % 7)] + tokens(50 + i, 400))[: [400, 31, 32, 64, 190, 260][i % 6]]
        jobs.append(Job(f"e{i}", prompt, embed(HEADS[i % 4]), at=i // 2))
    return jobs


@pytest.fixture(scope="module")
def whole(engine: Callable[..., Any], tiny_model: Path) -> dict[str, Any]:
    """The documents' vectors, each by itself in one piece."""
    llm = engine(tiny_model, max_num_batched_tokens=8192, enable_prefix_caching=False)
    return {name: vector for job in documents() for name, vector in run(llm, [job]).items()}


@pytest.mark.engine
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("blocks", [256, 40])
def test_vectors_are_the_same_however_many_steps_are_discarded(
    seed: int,
    blocks: int,
    whole: dict[str, Any],
    engine: Callable[..., Any],
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = engine(tiny_model, **IBS, num_gpu_blocks_override=blocks)
    chance = random.Random(seed)
    lost = interrupt(llm, monkeypatch, lambda: False)
    arrive_late(llm, monkeypatch, lambda: chance.randrange(9))  # of six looks at most
    jobs = documents()
    for job in jobs:
        job.abort_at = chance.choice([None, None, None, job.at + chance.randrange(6)])
    jobs += [Job(f"g{i}", tokens(i, 40), generate(2), at=12 * i) for i in range(3)]
    got = run(llm, jobs)
    assert len(lost) > 2
    for job in jobs:
        if job.name in whole and (job.abort_at is None or job.name in got):
            np.testing.assert_allclose(got[job.name], whole[job.name], atol=2e-5, err_msg=job.name)
    assert_idle(llm)


@pytest.mark.engine
@pytest.mark.parametrize("head", HEADS)
def test_a_kept_state_outlives_the_step_that_began_with_it(
    head: str, engine: Callable[..., Any], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"prefix_sums_mib": 2 * 4 * 128 / 2**20}
    llm = engine(tiny_model, **IBS, settings=row)
    prefix = tokens(7, 2 * BLOCK)
    embed_all(llm, [prefix + tokens(8, 5)], head)
    jobs = [
        Job("behind", prefix + tokens(9, 20), embed(head)),
        # Takes both rows in the step in which the first is computed again.
        Job("other", tokens(10, 2 * BLOCK), embed("mean"), at=1),
    ]
    lost = interrupt(llm, monkeypatch, iter([True, *[False] * 99]).__next__)
    got = run(llm, jobs)
    assert lost == [20]
    monkeypatch.undo()
    scheduler_of(llm).reset_prefix_cache()
    assert_idle(llm)
    np.testing.assert_allclose(got["behind"], embed_all(llm, [jobs[0].prompt], head)[0], atol=2e-5)


@pytest.mark.engine
def test_a_discarded_step_gives_the_chat_the_next_one(
    engine: Callable[..., Any], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engine(tiny_model, **IBS)
    core, scheduler = llm.llm_engine, scheduler_of(llm)
    schedule, steps = scheduler.schedule, []

    def noted(*args: Any) -> Any:
        output = schedule(*args)
        steps.append(dict(output.num_scheduled_tokens))
        if len(steps) == 2:
            core.add_request("g", {"prompt_token_ids": tokens(3, 10)}, generate(1))
        return output

    monkeypatch.setattr(scheduler, "schedule", noted)
    got = run(llm, [Job("e", tokens(4, 300), embed())])
    assert [list(step.values()) for step in steps[:4]] == [[96], [96], [10], [96]]
    assert sum(step.get(name, 0) for step in steps for name in step if name.startswith("e")) == 396
    assert got.keys() == {"e", "g"}
    assert_idle(llm)


def burst(tiny_model: Path) -> Any:
    scheduler = make_scheduler(MixedScheduler, tiny_model, orthrus={"mixed_step_tokens": 64})
    for i in range(3):
        scheduler.add_request(request(f"e{i}", 4 * BLOCK, embed("last")))
    return scheduler


def discard(scheduler: Any, output: Any) -> None:
    """Stand in for a worker that discards the step of `output`."""
    scheduler.get_grammar_bitmask(output)
    ids = list(output.num_scheduled_tokens)
    rows = SimpleNamespace(req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)})
    scheduler.update_from_output(output, discarded(rows))


def test_what_was_discarded_runs_before_the_next_step_may_be(tiny_model: Path) -> None:
    scheduler = burst(tiny_model)
    first = scheduler.schedule()
    assert first.num_scheduled_tokens == {"e0": 128}
    assert hasattr(first, WATCHED)
    scheduler.add_request(request("g", 8, generate(1)))
    discard(scheduler, first)
    assert answer(scheduler, scheduler.schedule()) == {"g"}
    for scheduled, is_watched in (
        ({"e0": 64}, False),
        ({"e0": 64}, False),
        ({"e1": 64}, True),
    ):
        output = scheduler.schedule()
        assert output.num_scheduled_tokens == scheduled
        assert hasattr(output, WATCHED) is is_watched
        answer(scheduler, output)


def test_a_step_with_a_generation_is_never_discarded(tiny_model: Path) -> None:
    scheduler = burst(tiny_model)
    scheduler.add_request(request("g", 8, generate(4)))
    for _ in range(4):
        output = scheduler.schedule()
        assert not hasattr(output, WATCHED)
        answer(scheduler, output)


@pytest.mark.parametrize(
    "orthrus",
    [
        {"policy": "fcfs"},
        {"mixed_step_tokens": 0},
        {"mixed_step_tokens": 64, "policy_options": {"ttft_target_s": 0}},
    ],
)
def test_only_where_a_ttft_target_bounds_steps(orthrus: dict[str, Any], tiny_model: Path) -> None:
    scheduler = make_scheduler(MixedScheduler, tiny_model, orthrus=orthrus)
    scheduler.add_request(request("e", 100, embed()))
    assert not hasattr(scheduler.schedule(), WATCHED)


@pytest.mark.parametrize("is_aborted", [False, True])
def test_blocks_that_were_not_computed_are_in_no_cache(is_aborted: bool, tiny_model: Path) -> None:
    settings = {"mixed_step_tokens": 64}
    scheduler = make_scheduler(MixedScheduler, tiny_model, orthrus=settings, enable_prefix_caching=True)
    pool = scheduler.kv_cache_manager.block_pool
    scheduler.add_request(hashed("e", tokens(1, 4 * BLOCK), embed("last")))
    scheduler.add_request(hashed("f", tokens(2, 4 * BLOCK), embed("last")))
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"e": 128}
    if is_aborted:
        scheduler.finish_requests(["e"], RequestStatus.FINISHED_ABORTED)
    discard(scheduler, output)
    assert len(pool.cached_block_hash_to_block) == 0
    assert answer(scheduler, scheduler.schedule()) == ({"f"} if is_aborted else {"e"})
    assert len(pool.cached_block_hash_to_block) == 4


def test_a_request_that_the_same_step_preempts_leaves_nothing_in_the_cache(tiny_model: Path) -> None:
    settings = {"mixed_step_tokens": 64}
    scheduler = make_scheduler(MixedScheduler, tiny_model, orthrus=settings, enable_prefix_caching=True)
    for seed, name in enumerate("ef"):
        scheduler.add_request(hashed(name, tokens(seed, 4 * BLOCK), embed("last")))
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"e": 128}
    # vLLM allocates for requests in turn, and may take the blocks of one for the next (by priority).
    scheduler._discards._full_blocks.append((scheduler.requests["f"], 4 * BLOCK))
    answer(scheduler, output)
    assert len(scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block) == 4


def test_a_discarded_step_is_no_step_of_the_trace(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    settings = {"mixed_step_tokens": 64, "trace_steps": str(path)}
    scheduler = make_scheduler(MixedScheduler, tiny_model, orthrus=settings)
    scheduler.add_request(request("e", 100, embed()))
    output = scheduler.schedule()
    scheduler.finish_requests(["e"], RequestStatus.FINISHED_ABORTED)
    discard(scheduler, output)
    answer(scheduler, scheduler.schedule())  # an empty one, by which vLLM tells its workers of the end
    for name in ("f", "g"):
        scheduler.add_request(request(name, 100, embed()))
        answer(scheduler, scheduler.schedule())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["discarded"], line["tokens"]["embed"]) for line in lines] == [(100, 100), (0, 100)]


def test_blocks_that_a_discarded_step_took_count_once(tiny_model: Path) -> None:
    settings = {"mixed_step_tokens": 256}
    scheduler = make_scheduler(
        MixedScheduler, tiny_model, blocks=21, max_num_batched_tokens=512, orthrus=settings
    )
    scheduler.add_request(request("e", 12 * BLOCK, embed()))
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"e": 12 * BLOCK}
    scheduler.add_request(request("g", 5 * BLOCK, generate(2)))
    discard(scheduler, output)
    assert scheduler.schedule().num_scheduled_tokens == {"g": 5 * BLOCK}


def test_another_process_reads_the_flag() -> None:
    flag = ArrivalFlag()
    flag.set()
    program = f"from orthrus.engine.arrival_flag import open_flag; print(open_flag({flag.address})[0])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "1"
    flag.clear()
    assert open_flag(flag.address)[0] == 0


@pytest.mark.parametrize("is_eager", [True, False])
def test_a_step_is_given_up_in_the_first_half_of_its_layers_only(is_eager: bool) -> None:
    ran: list[int] = []
    attention, linear, operations = {}, [], []
    for i in range(4):  # a layer: linear, attention, linear
        before, after = (SimpleNamespace(cpu_linear=lambda i=i, j=j: ran.append(3 * i + j)) for j in (0, 2))
        layer = SimpleNamespace(impl=SimpleNamespace(forward=lambda i=i: ran.append(3 * i + 1)))
        attention[str(i)] = layer
        linear += [after, before]
        operations += [
            lambda linear=before: linear.cpu_linear(),
            lambda layer=layer: layer.impl.forward(),
            lambda linear=after: linear.cpu_linear(),
        ]
    watch, flag = StepWatch(attention, linear if is_eager else ()), ArrivalFlag()

    def forward(arrives_before: int) -> list[int]:
        ran.clear()
        flag.clear()
        watch.begin(SimpleNamespace(**{WATCHED: flag.address}))
        for i, operation in enumerate(operations):
            if i == arrives_before:
                flag.set()
            operation()
        return ran.copy()

    looks = [*range(7)] if is_eager else [1, 4]
    for arrives_before in range(looks[-1] + 1):
        with pytest.raises(StepDiscardedError):
            forward(arrives_before)
        assert ran == list(range(next(i for i in looks if i >= arrives_before)))
    assert forward(7) == list(range(12))
    watch.begin(SimpleNamespace(**{WATCHED: flag.address}))
    watch.end()
    flag.set()
    for operation in operations:
        operation()
    assert len(ran) == 24


def test_without_the_flag_a_step_runs_to_its_end() -> None:
    watch = StepWatch({})
    gone = ArrivalFlag()
    address = (gone.address[0], 10**6)
    for _ in range(2):
        watch.begin(SimpleNamespace(**{WATCHED: address}))
    assert watch._flag is None
