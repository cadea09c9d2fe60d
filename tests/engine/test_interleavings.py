"""Random interleavings of arrivals and aborts: each request gives what it gives when it runs alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import (
    Job,
    assert_idle,
    assert_same_generation,
    cosine,
    embed,
    run,
    tokens,
)
from sampling_zoo import zoo

pytestmark = pytest.mark.engine

CUSTOM = {"logits_processors": ["sampling_zoo:BanMultiples"]}
HEADS = ("mean", "last", "cls", "weighted_mean")
ENGINES: dict[str, dict[str, Any]] = {
    "ibs": {"policy": "ibs", "policy_options": {"embed_chunk": 32}, "max_num_batched_tokens": 128},
    "fcfs, few slots": {"policy": "fcfs", "max_num_batched_tokens": 64, "max_num_seqs": 6},
    "homogeneous": {"policy": "homogeneous", "max_num_batched_tokens": 96},
    "ibs, few blocks": {
        "policy": "ibs",
        "policy_options": {"embed_chunk": 16},
        "max_num_batched_tokens": 64,
        "num_gpu_blocks_override": 26,
    },
    "fcfs, no prefix cache": {"policy": "fcfs", "max_num_batched_tokens": 48, "enable_prefix_caching": False},
    "ibs by priority": {
        "policy": "ibs",
        "max_num_batched_tokens": 80,
        "scheduling_policy": "priority",
        "num_gpu_blocks_override": 40,
    },
}


def menu() -> list[Job]:
    """Requests of all sorts, some sharing their prefix with another of either kind."""
    shared = tokens(1, 200)
    jobs = []
    for i, (name, params) in enumerate(zoo(10).items()):
        if name == "logprob_ids":
            continue  # vLLM's own answer depends on the neighbours: rows without ids lose their top k
        prompt = (shared[: 32 * (i % 6)] + tokens(200 + i, 5 + 13 * i % 90))[:230]
        jobs.append(Job(name, prompt, params))
    for i in range(16):
        length = [1, 2, 3, 31, 32, 33, 64, 95, 140, 200, 260, 333][i % 12]
        prompt = (shared[: 32 * (i % 5)] + tokens(300 + i, 400))[:length]
        jobs.append(Job(f"embedding-{i}", prompt, embed(HEADS[i % 4], use_activation=i % 3 > 0)))
    return jobs


@pytest.fixture(scope="module")
def alone(stock_engine: Callable[..., Any], engine: Callable[..., Any], tiny_model: Path) -> dict[str, Any]:
    """Each request by itself: generations by stock vLLM, embeddings by ours, both in one piece."""
    whole = {"max_num_batched_tokens": 8192, "enable_prefix_caching": False, **CUSTOM}
    stock, ours = stock_engine(tiny_model, **whole), engine(tiny_model, **whole)
    answers: dict[str, Any] = {}
    for job in menu():
        answers |= run(ours if job.name.startswith("embedding") else stock, [job])
    return answers


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ENGINES)
def test_interleavings(
    name: str, seed: int, alone: dict[str, Any], engine: Callable[..., Any], tiny_model: Path
) -> None:
    llm = engine(tiny_model, **ENGINES[name], **CUSTOM)
    chance = random.Random(f"{name} {seed}")
    jobs = []
    for job in chance.sample(menu(), 30):
        at = chance.choice([0, 0, chance.randrange(40)])
        abort_at = at + chance.randrange(12) if chance.random() < 0.25 else None
        jobs.append(replace(job, at=at, abort_at=abort_at, priority=chance.randrange(3)))
    got = run(llm, jobs)
    for job in jobs:
        if job.abort_at is not None and job.name not in got:
            continue
        if isinstance(alone[job.name], np.ndarray):
            assert cosine(got[job.name], alone[job.name]) > 0.99999, job.name
            np.testing.assert_allclose(got[job.name], alone[job.name], atol=2e-4, err_msg=job.name)
        else:
            assert_same_generation(got[job.name], alone[job.name], job.name)
    assert_idle(llm)
