"""Every sampling option beside embeddings gives what stock vLLM gives without them (case A18)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_driver import Finished, Job, assert_same_generation, embed, run, tokens
from sampling_zoo import zoo

pytestmark = pytest.mark.engine

CUSTOM = {"logits_processors": ["sampling_zoo:BanMultiples"]}
LENGTHS = {"short": 9, "chunked": 150}


def jobs(length: int) -> list[Job]:
    """The zoo, arriving in pairs; each prompt is its own, so that a row taken for another shows."""
    return [
        Job(name, tokens(100 + i, length + i), params, at=i // 2)
        for i, (name, params) in enumerate(zoo().items())
    ]


@pytest.fixture(scope="module")
def alone(stock_engine: Callable[..., Any], tiny_model: Path) -> dict[str, dict[str, Finished]]:
    """Stock vLLM, whole prompts: a chunked seeded prompt ends it on the CPU."""
    stock = stock_engine(tiny_model, max_num_batched_tokens=8192, **CUSTOM)
    return {name: run(stock, jobs(length)) for name, length in LENGTHS.items()}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("policy", ["fcfs", "homogeneous", "ibs"])
def test_same_as_stock_vllm_beside_embeddings(
    policy: str, length: str, alone: Any, engine: Callable[..., Any], tiny_model: Path
) -> None:
    options = {"embed_chunk": 16} if policy == "ibs" else None
    llm = engine(tiny_model, policy=policy, policy_options=options, max_num_batched_tokens=96, **CUSTOM)
    embeddings = [
        Job(f"embedding-{i}", tokens(500 + i, 1 + 23 * i % 130), embed(), at=2 * i // 3) for i in range(40)
    ]
    got = run(llm, [*embeddings, *jobs(LENGTHS[length])])
    for job in embeddings:
        assert got[job.name].shape == (128,)
    for name, wanted in alone[length].items():
        assert_same_generation(got[name], wanted, name)


def test_stock_vllm_still_fails_on_a_seeded_chunked_prompt(
    stock_engine: Callable[..., Any], tiny_model: Path
) -> None:
    """Why rows whose sample is thrown away must not draw: once this fails, the workaround can go."""
    llm = stock_engine(tiny_model, max_num_batched_tokens=64)
    with pytest.raises(RuntimeError, match="offset"):
        run(llm, [Job("writer", tokens(1, 150), zoo()["seed"])])
