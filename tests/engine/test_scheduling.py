"""The scheduler inside a running engine: which requests run in a step, and what is left afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import (
    TINY_MAX_LEN,
    Finished,
    Job,
    assert_idle,
    assert_same_generation,
    cosine,
    embed,
    embed_all,
    generate,
    run,
    scheduler_of,
    tokens,
)
from vllm import PoolingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.core.sched.scheduler import Scheduler

pytestmark = pytest.mark.engine

HEADS = ("mean", "last", "cls", "weighted_mean")
Engine = Callable[..., Any]


class Steps:
    """The tokens of every step by the request's name, as vLLM scheduled them."""

    def __init__(self, llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[dict[str, int]] = []
        self.preempted: list[str] = []
        scheduler = scheduler_of(llm)
        schedule = scheduler.schedule

        def recording(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self.steps.append({_name(i): n for i, n in output.num_scheduled_tokens.items()})
            self.preempted += [_name(i) for i in output.preempted_req_ids or ()]
            return output

        monkeypatch.setattr(scheduler, "schedule", recording)

    def of(self, name: str) -> list[int]:
        return [step.get(name, 0) for step in self.steps]

    def first(self, name: str) -> int:
        return next(i for i, step in enumerate(self.steps) if name in step)


def _name(internal: str) -> str:
    return internal.rpartition("-")[0]


@pytest.mark.parametrize("policy", ["fcfs", "ibs"])
def test_without_embeddings_vllm_schedules_by_itself(
    policy: str, engine: Engine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engine(tiny_model, policy=policy)
    run(llm, [Job("first", tokens(0, 40), embed())])
    seen: list[object] = []
    stock = Scheduler.schedule
    monkeypatch.setattr(
        Scheduler, "schedule", lambda self, *a: (seen.append(type(self.waiting).__name__), stock(self, *a))[1]
    )
    run(llm, [Job("writer", tokens(1, 300), generate(5))])
    assert set(seen) == {"WaitingByKind"}


def test_embedding_of_exactly_the_models_length(
    engine: Engine, stock_engine: Engine, tiny_model: Path
) -> None:
    whole = stock_engine(tiny_model, runner="pooling", convert="embed", max_num_batched_tokens=1024)
    prompt = tokens(3, TINY_MAX_LEN)
    wanted = run(whole, [Job("text", prompt, embed())])["text"]
    for budget in (128, 511, 512):
        llm = engine(tiny_model, max_num_batched_tokens=budget)
        got = embed_all(llm, [prompt], "last")[0]
        assert cosine(got, wanted) > 0.99999, budget
    with pytest.raises(VLLMValidationError, match="maximum context length is 512"):
        embed_all(llm, [[*prompt, 7]])
    with pytest.raises(VLLMValidationError, match="at least 1"):
        run(llm, [Job("writer", prompt, generate(1))])
    assert_idle(llm)


def test_last_position_beside_a_generation(engine: Engine, tiny_model: Path) -> None:
    llm = engine(tiny_model, policy="ibs")
    prompt = tokens(3, TINY_MAX_LEN)
    alone = embed_all(llm, [prompt], "mean")[0]
    got = run(llm, [Job("writer", tokens(4, 20), generate(30)), Job("text", prompt, embed("mean"), at=2)])
    assert cosine(got["text"], alone) > 0.999999


def test_unknown_or_refused_pooling_is_an_error_before_the_engine(engine: Engine, tiny_model: Path) -> None:
    llm = engine(tiny_model)
    for head in ("median", "buffered"):
        with pytest.raises(VLLMValidationError, match=f"'{head}'.*allowed"):
            embed_all(llm, [[7, 8, 9]], head)
    classify = Job("text", [7, 8], PoolingParams(task="classify"))
    with pytest.raises(VLLMValidationError, match="Unsupported task"):
        run(llm, [classify])
    assert embed_all(llm, [[7, 8, 9]]).shape == (1, 128)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_shortest_inputs(length: int, head: str, engine: Engine, tiny_model: Path) -> None:
    llm = engine(tiny_model)
    prompt = tokens(40 + length, length)
    whole = embed_all(llm, [prompt], head)[0]
    one_by_one = embed_all(engine(tiny_model, max_num_batched_tokens=32, max_num_seqs=32), [prompt], head)[0]
    assert np.linalg.norm(whole) == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(whole, one_by_one, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_chunk_sizes(head: str, engine: Engine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case A6. The budget is the chunk of a lone embedding, so it is changed under the running engine."""
    llm = engine(tiny_model)
    scheduler = scheduler_of(llm)
    prompt = tokens(9, 100)
    vectors = {}
    for chunk in (128, 1, 7, 16, 17, 99, 100, 101):
        monkeypatch.setattr(scheduler, "max_num_scheduled_tokens", chunk)
        vectors[chunk] = run(llm, [Job("text", prompt, embed(head), cache_salt=str(chunk))])["text"]
    for chunk, vector in vectors.items():
        np.testing.assert_allclose(vector, vectors[128], atol=1e-5, err_msg=str(chunk))


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("block_size", [32, 64])
@pytest.mark.parametrize("head", HEADS)
def test_same_vector_in_any_company(
    head: str, block_size: int, caching: bool, engine: Engine, tiny_model: Path
) -> None:
    """Cases A7 and A8."""
    llm = engine(tiny_model, policy="ibs", block_size=block_size, enable_prefix_caching=caching)
    prompt = tokens(21, 180)
    alone = embed_all(llm, [prompt], head)[0]
    shared = Job("sharer", [*prompt[:150], 33], generate(12))
    writer = Job("writer", tokens(22, 50), generate(40))
    others = [Job(f"other-{i}", tokens(60 + i, 30 * i + 1), embed(HEADS[i % 4])) for i in range(5)]
    companies = {
        "in a batch": others,
        "beside decodes": [writer],
        "after a generation that shares its prefix": [shared],
    }
    for name, company in companies.items():
        at = 20 if name.startswith("after") else 3
        text = Job("text", prompt, embed(head), at=at)
        assert cosine(run(llm, [*company, text])["text"], alone) > 0.999999, name
    salted = run(llm, [Job("text", prompt, embed(head), cache_salt="other")])["text"]
    assert cosine(salted, alone) > 0.999999
    assert_idle(llm)


def test_only_last_reads_the_prefix_cache_and_a_salt_is_honoured(
    engine: Engine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engine(tiny_model, policy="fcfs", max_num_batched_tokens=256)
    prompt = tokens(77, 170)
    run(llm, [Job("first", [*prompt, 7], generate(1))])
    jobs = [Job(head, prompt, embed(head), at=2 * i) for i, head in enumerate(HEADS)]
    steps = Steps(llm, monkeypatch)
    run(llm, [*jobs, Job("salted", prompt, embed("last"), at=10, cache_salt="a")])
    computed = {name: sum(steps.of(name)) for name in (*HEADS, "salted")}
    assert computed == {"mean": 170, "last": 170 - 160, "cls": 170, "weighted_mean": 170, "salted": 170}


def test_spare_tokens_take_nothing_from_the_other_kind(
    engine: Engine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engine(tiny_model, policy="ibs", policy_options={"embed_chunk": 64, "prefill_chunk": 64})
    run(llm, [Job("opener", tokens(1, 5), embed())])
    steps = Steps(llm, monkeypatch)
    run(llm, [Job("text", tokens(5, 400), embed()), Job("writer", tokens(6, 400), generate(2))])
    assert (steps.of("text")[0], steps.of("writer")[0]) == (64, 64)


def test_a_prefix_hit_leaves_its_tokens_to_those_behind(
    engine: Engine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engine(tiny_model)
    prompt = tokens(31, 120)
    run(llm, [Job("first", prompt, generate(1))])
    steps = Steps(llm, monkeypatch)
    run(llm, [Job("again", [*prompt, 9], generate(1)), Job("text", tokens(32, 200), embed())])
    assert steps.steps[0] == {"again": 121 - 96, "text": 128 - (121 - 96)}


@pytest.mark.parametrize("policy", ["fcfs", "homogeneous", "ibs"])
def test_preempted_requests_of_both_kinds_start_again(
    policy: str, engine: Engine, stock_engine: Engine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = [Job(f"writer-{i}", tokens(i, 60), generate(120), at=i) for i in range(4)]
    texts = [Job(f"text-{i}", tokens(80 + i, 330), embed("mean"), at=4 + 8 * i) for i in range(6)]
    alone = run(stock_engine(tiny_model, max_num_batched_tokens=1024), writers)
    llm = engine(tiny_model, policy=policy, max_num_batched_tokens=48, num_gpu_blocks_override=22)
    vectors = embed_all(llm, [job.prompt for job in texts], "mean")
    steps = Steps(llm, monkeypatch)
    got = run(llm, [*writers, *texts])
    for job in writers:
        assert_same_generation(got[job.name], alone[job.name], job.name)
    for job, vector in zip(texts, vectors, strict=True):
        assert cosine(got[job.name], vector) > 0.999999, job.name
    kinds = {name.partition("-")[0] for name in steps.preempted}
    assert "text" in kinds if policy != "fcfs" else kinds
    assert_idle(llm)


@pytest.mark.parametrize("abort_at", range(8))
def test_abort_at_any_moment(abort_at: int, engine: Engine, tiny_model: Path) -> None:
    """Waiting, after each chunk, and in the step before the last: five chunks of 64, two slots."""
    llm = engine(tiny_model, max_num_batched_tokens=64, max_num_seqs=2)
    victims = [Job(f"text-{i}", tokens(i, 320), embed(), abort_at=abort_at) for i in range(3)]
    writer = Job("writer", tokens(9, 30), generate(25), at=1)
    got = run(llm, [*victims, writer, Job("after", tokens(8, 100), embed(), at=abort_at)])
    assert set(got) == {"writer", "after"} | {f"text-{i}" for i in range(3) if f"text-{i}" in got}
    assert got["after"].shape == (128,)
    assert_idle(llm)


def test_reused_request_name_starts_afresh(engine: Engine, tiny_model: Path) -> None:
    llm = engine(tiny_model)
    first = run(llm, [Job("same", tokens(1, 300), embed(), abort_at=1)])
    second = run(llm, [Job("same", tokens(2, 300), embed())])
    assert first == {}
    assert cosine(second["same"], embed_all(llm, [tokens(2, 300)])[0]) > 0.999999


def test_priority_orders_both_kinds(
    engine: Engine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engine(tiny_model, scheduling_policy="priority", max_num_batched_tokens=64, max_num_seqs=4)
    jobs = [Job(f"text-{p}", tokens(p, 64), embed(), priority=p) for p in (3, 1, 2, 0)]
    jobs += [Job(f"writer-{p}", tokens(9 + p, 64), generate(1), priority=p) for p in (7, 5, 6, 4)]
    steps = Steps(llm, monkeypatch)
    run(llm, jobs)
    order = sorted((steps.first(job.name), job.priority) for job in jobs)
    assert [priority for _, priority in order] == list(range(8))


@pytest.mark.parametrize("policy", ["fcfs", "ibs", "homogeneous"])
@pytest.mark.parametrize("giant", ["embed", "generate"])
def test_a_head_that_does_not_fit_never_holds_the_other_kind(
    giant: str, policy: str, engine: Engine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """23 usable blocks; two writers fill most of them, so a prompt of 480 tokens (15 blocks) has to wait."""
    llm = engine(tiny_model, policy=policy, num_gpu_blocks_override=24, enable_prefix_caching=False)
    fillers = [Job(f"filler-{i}", tokens(i, 160), generate(60)) for i in range(2)]
    big, small = (embed(), generate(3)) if giant == "embed" else (generate(3), embed())
    head = Job("giant", tokens(7, 480), big, at=6)
    others = [Job(f"small-{i}", tokens(20 + i, 20), small, at=6 + 3 * i) for i in range(8)]
    steps = Steps(llm, monkeypatch)
    got = run(llm, [*fillers, head, *others])
    patience = 2 if policy == "homogeneous" else 1
    for job in others:
        assert steps.first(job.name) <= job.at + patience, job.name
    assert steps.first("giant") > 40
    assert isinstance(got["giant"], Finished if giant == "generate" else np.ndarray)


def test_policies_mix_or_separate_the_kinds(
    engine: Engine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = [Job(f"writer-{i}", tokens(i, 100), generate(10), at=i) for i in range(3)]
    texts = [Job(f"text-{i}", tokens(30 + i, 100), embed(), at=i) for i in range(8)]
    mixed = {}
    for policy in ("fcfs", "ibs", "homogeneous"):
        llm = engine(tiny_model, policy=policy, max_num_batched_tokens=64)
        with monkeypatch.context() as patch:
            steps = Steps(llm, patch)
            run(llm, [*writers, *texts])
        mixed[policy] = sum(len({name[0] for name in step}) == 2 for step in steps.steps)
        assert max(sum(step.values()) for step in steps.steps) == 64
    assert mixed["homogeneous"] == 0
    assert min(mixed["fcfs"], mixed["ibs"]) > 5
