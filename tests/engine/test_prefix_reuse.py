"""Embeddings behind a cached prefix: fewer tokens computed, the same vectors, whatever else happens."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import (
    Job,
    assert_idle,
    cosine,
    embed,
    embed_all,
    generate,
    run,
    scheduler_of,
    tokens,
)
from vllm.lora.request import LoRARequest

from orthrus.bench.adapters import random_adapter

pytestmark = pytest.mark.engine

BLOCK = 32
HIDDEN = 128
SIZES = {"max_num_batched_tokens": 64}
HEADS = ("mean", "weighted_mean", "cls", "last")
SHARED = tokens(1, 300)


def rows(count: float) -> dict[str, float]:
    """Settings that keep `count` pooling states of the tiny model."""
    return {"prefix_sums_mib": count * 4 * HIDDEN / 2**20}


@dataclass
class Watched:
    """Tokens scheduled in all, and the cached prompt tokens that each request reports."""

    tokens: int = 0
    preempted: int = 0
    cached: dict[str, int] = field(default_factory=dict)


@contextmanager
def watch(llm: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    scheduler, engine, seen = scheduler_of(llm), llm.llm_engine, Watched()
    schedule, step = scheduler.schedule, engine.step

    def counted(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        seen.tokens += output.total_num_scheduled_tokens
        seen.preempted += len(output.preempted_req_ids or ())
        return output

    def observed() -> Any:
        outputs = step()
        seen.cached.update({output.request_id: output.num_cached_tokens for output in outputs})
        return outputs

    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "schedule", counted)
        patched.setattr(engine, "step", observed)
        yield seen


@pytest.fixture(scope="module")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("adapters")
    made = [random_adapter(tiny_model, 8, folder / str(i), seed=i, strength=0.5) for i in (1, 2)]
    return [None, *(LoRARequest(f"a{i}", i, str(path)) for i, path in enumerate(made, start=1))]


@pytest.fixture(scope="module")
def plain(engine: Callable[..., Any], tiny_model: Path) -> Any:
    return engine(tiny_model, policy="ibs", **SIZES)


@pytest.fixture(scope="module")
def uncached(engine: Callable[..., Any], tiny_model: Path) -> Callable[[Job], np.ndarray]:
    """The vector of a request by itself, in one piece, without any cache."""
    llm = engine(
        tiny_model,
        max_num_batched_tokens=1024,
        enable_prefix_caching=False,
        enable_lora=True,
        max_lora_rank=8,
        max_loras=2,
    )
    known: dict[Any, np.ndarray] = {}

    def vector(job: Job) -> np.ndarray:
        key = (tuple(job.prompt), job.lora and job.lora.lora_int_id, repr(job.params.extra_kwargs))
        if key not in known:
            known[key] = run(llm, [Job("alone", job.prompt, job.params, lora=job.lora)])["alone"]
        return known[key]

    return vector


def assert_equal(got: np.ndarray, wanted: np.ndarray, name: str = "") -> None:
    assert cosine(got, wanted) > 0.99999, name
    np.testing.assert_allclose(got, wanted, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("head", HEADS)
def test_a_shared_prefix_is_computed_once(
    head: str, plain: Any, uncached: Callable[[Job], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plain.reset_prefix_cache()
    prompts = [SHARED[:130] + tokens(50 + i, 20 + i) for i in range(6)]
    first, *others = [Job(f"p{i}", prompt, embed(head)) for i, prompt in enumerate(prompts)]
    got = run(plain, [first])
    with watch(plain, monkeypatch) as seen:
        got |= run(plain, others)
    # 130 shared tokens are 4 whole blocks.
    assert seen.tokens == sum(len(job.prompt) - 4 * BLOCK for job in others)
    assert seen.cached == {job.name: 4 * BLOCK for job in others}
    for job in (first, *others):
        assert_equal(got[job.name], uncached(job), job.name)
    assert_idle(plain)


def test_a_grown_document_starts_where_it_ended(
    plain: Any, uncached: Callable[[Job], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plain.reset_prefix_cache()
    seen_tokens = []
    for length in (70, 100, 200, 300):
        job = Job(f"l{length}", SHARED[:length], embed("weighted_mean"))
        with watch(plain, monkeypatch) as seen:
            got = run(plain, [job])
        assert_equal(got[job.name], uncached(job), job.name)
        seen_tokens.append(seen.tokens)
    assert seen_tokens == [70, 100 - 64, 200 - 96, 300 - 192]


def test_the_same_prompt_again_computes_its_last_block_only(
    plain: Any, uncached: Callable[[Job], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plain.reset_prefix_cache()
    job = Job("again", SHARED[:128], embed("mean"))
    run(plain, [job])
    with watch(plain, monkeypatch) as seen:
        got = run(plain, [job])
    assert seen.tokens == BLOCK
    assert_equal(got["again"], uncached(job))


def test_states_of_one_head_serve_no_other(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain.reset_prefix_cache()
    run(plain, [Job("mean", SHARED[:100], embed("mean"))])
    with watch(plain, monkeypatch) as seen:
        run(plain, [Job("cls", SHARED[:100], embed("cls"))])
    assert seen.tokens == 100
    with watch(plain, monkeypatch) as seen:
        run(plain, [Job("last", SHARED[:100], embed("last"))])
    assert seen.tokens == 100 - 96


def test_a_missing_state_means_computing_again(
    plain: Any, uncached: Callable[[Job], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plain.reset_prefix_cache()
    job = Job("m", SHARED[:140], embed("mean"))
    run(plain, [job])
    scheduler_of(plain)._reuse.clear()
    with watch(plain, monkeypatch) as seen:
        got = run(plain, [job])
    assert seen.tokens == 140
    assert_equal(got["m"], uncached(job))


def test_only_the_states_that_are_left_shorten_a_prompt(
    engine: Callable[..., Any],
    tiny_model: Path,
    uncached: Callable[[Job], np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three states only: of four boundaries the first is given up in favour of the last."""
    llm = engine(tiny_model, policy="ibs", settings=rows(3), **SIZES)
    old, new = Job("old", SHARED[:80], embed("mean")), Job("new", tokens(9, 80), embed("mean"))
    run(llm, [old])
    run(llm, [new])
    with watch(llm, monkeypatch) as seen:
        got = run(llm, [old])
    # The newer prompt took the free row and the least recently used one, which was the older prompt's
    # first boundary; its second is still there.
    assert seen.tokens == 80 - 64
    assert_equal(got["old"], uncached(old))


def test_off_means_that_every_token_is_computed(
    engine: Callable[..., Any], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engine(tiny_model, policy="ibs", settings={"prefix_sums_mib": 0}, **SIZES)
    job = Job("off", SHARED[:128], embed("mean"))
    run(llm, [job])
    with watch(llm, monkeypatch) as seen:
        run(llm, [job])
    assert seen.tokens == 128


def test_reset_forgets(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("r", SHARED[:128], embed("mean"))
    run(plain, [job])
    assert plain.reset_prefix_cache()
    with watch(plain, monkeypatch) as seen:
        run(plain, [job])
    assert seen.tokens == 128


@pytest.mark.parametrize("adapter", [0, 1])
def test_blocks_pass_from_embedding_to_generation_and_back(
    adapter: int,
    engine: Callable[..., Any],
    stock_engine: Callable[..., Any],
    tiny_model: Path,
    adapters: list[Any],
    uncached: Callable[[Job], np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lora = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
    llm = engine(tiny_model, policy="ibs", **lora, **SIZES)
    assert llm.reset_prefix_cache()
    passage = Job("passage", SHARED[:200], embed("mean"), lora=adapters[adapter])
    story = Job("story", SHARED[:200] + tokens(3, 9), generate(8), lora=adapters[adapter])
    other = Job("other", story.prompt, story.params, lora=adapters[1 - adapter])
    run(llm, [passage])
    with watch(llm, monkeypatch) as seen:
        got = run(llm, [other, story])
    assert seen.cached["story"] == 192
    assert seen.cached["other"] == 0
    if adapter == 0:
        wanted = run(stock_engine(tiny_model, enable_prefix_caching=False), [story])
        assert got["story"].tokens == wanted["story"].tokens

    # The other way: a generation's blocks serve the last head, which needs no state of its prefix.
    assert llm.reset_prefix_cache()
    run(llm, [story])
    last = Job("last", SHARED[:200], embed("last"), lora=adapters[adapter])
    mean = Job("mean", SHARED[:200], embed("mean"), lora=adapters[adapter])
    with watch(llm, monkeypatch) as seen:
        got = run(llm, [last, mean])
    assert seen.cached == {"last": 192, "mean": 0}
    for job in (last, mean):
        assert_equal(got[job.name], uncached(job), job.name)
    assert_idle(llm)


def test_a_salt_keeps_states_apart(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain.reset_prefix_cache()
    for salt, computed in (("a", 128), ("b", 128), (None, 128), ("a", BLOCK), ("b", BLOCK), (None, BLOCK)):
        with watch(plain, monkeypatch) as seen:
            run(plain, [Job("s", SHARED[:128], embed("mean"), cache_salt=salt)])
        assert seen.tokens == computed, salt


FUZZED: dict[str, dict[str, Any]] = {
    "roomy": {"num_gpu_blocks_override": 256},
    "few blocks": {"num_gpu_blocks_override": 26, "policy_options": {"embed_chunk": 16}},
    "few states": {"settings": rows(5)},
    "few of both": {"num_gpu_blocks_override": 24, "settings": rows(7), "max_num_batched_tokens": 48},
    "large blocks": {"block_size": 64, "num_gpu_blocks_override": 30, "max_num_batched_tokens": 96},
}


def shuffled(chance: random.Random, adapters: Sequence[Any]) -> list[Job]:
    jobs = []
    for i in range(24):
        prefix = SHARED[: chance.choice([0, 1, 31, 32, 33, 63, 64, 65, 96, 130, 160, 200])]
        prompt = prefix + tokens(chance.choice([7, 8, 100 + i]), chance.choice([1, 5, 32, 64, 90]))
        at = chance.randrange(30)
        params = generate(chance.randrange(1, 12)) if chance.random() < 0.2 else embed(chance.choice(HEADS))
        jobs.append(
            Job(
                f"{i}",
                prompt,
                params,
                at=at,
                abort_at=at + chance.randrange(8) if chance.random() < 0.15 else None,
                lora=chance.choice(adapters),
                cache_salt=chance.choice([None, None, "salt"]),
            )
        )
    return jobs


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", FUZZED)
def test_any_history_gives_the_uncached_vectors(
    name: str,
    seed: int,
    engine: Callable[..., Any],
    tiny_model: Path,
    adapters: list[Any],
    uncached: Callable[[Job], np.ndarray],
) -> None:
    sizes = {**SIZES, "enable_lora": True, "max_lora_rank": 8, "max_loras": 2, **FUZZED[name]}
    llm = engine(tiny_model, policy="ibs", **sizes)
    chance = random.Random(f"{name} {seed}")
    for _ in range(2):
        jobs = shuffled(chance, adapters)
        got = run(llm, jobs)
        for job in jobs:
            if isinstance(got.get(job.name), np.ndarray):
                assert_equal(got[job.name], uncached(job), f"{name} {job.name}")
            else:
                assert job.abort_at is not None or job.name in got
        assert_idle(llm)


def test_preempted_embeddings_restart_from_a_kept_state(
    engine: Callable[..., Any],
    tiny_model: Path,
    uncached: Callable[[Job], np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = engine(
        tiny_model,
        policy="ibs",
        policy_options={"embed_chunk": 16},
        num_gpu_blocks_override=22,
        max_num_batched_tokens=64,
    )
    writers = [Job(f"w{i}", tokens(60 + i, 60), generate(120)) for i in range(4)]
    texts = [
        Job(f"t{i}", SHARED[:100] + tokens(70 + i, 150), embed(HEADS[i % 4]), at=2 * i) for i in range(8)
    ]
    with watch(llm, monkeypatch) as seen:
        got = run(llm, [*writers, *texts])
    assert seen.preempted > 0
    for job in texts:
        assert_equal(got[job.name], uncached(job), job.name)
    assert_idle(llm)


def test_embed_all_twice_is_the_same(plain: Any) -> None:
    prompts = [SHARED[: 40 * i + 3] for i in range(1, 7)]
    once, again = embed_all(plain, prompts, "mean"), embed_all(plain, prompts, "mean")
    np.testing.assert_allclose(once, again, atol=1e-5)
