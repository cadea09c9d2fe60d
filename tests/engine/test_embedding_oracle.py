"""Vectors against transformers, and generations beside them against stock vLLM, on the sample model."""

from __future__ import annotations

from collections.abc import Callable
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
    embed_all,
    generate,
    pooled,
    reference_hidden_states,
    run,
    tokens,
)
from transformers import AutoTokenizer

pytestmark = pytest.mark.engine

HEADS = ("mean", "last", "cls", "weighted_mean")
LENGTHS = (1, 2, 3, 17, 64, 129, 255, 256, 257, 300, 450, 600, 1100, 1900)
SIZES = {"max_model_len": 2048, "num_gpu_blocks_override": 256, "max_num_seqs": 16}
VOCABULARY = 49152
TEXT = (
    "The heart of a whale beats a few times in a minute when it dives, and more than thirty times when it "
    "is back at the surface to breathe. A tag with four suction cups told this to the people in the boat, "
    "who had waited for it a whole day off the coast of California. They found that the heart works close "
    "to its limits, which may be the reason why no animal has ever grown any larger than this one."
)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return [tokens(7000 + length, length, VOCABULARY) for length in LENGTHS]


@pytest.fixture(scope="module")
def wanted(sample_model: Path, prompts: list[list[int]]) -> dict[str, list[np.ndarray]]:
    states = reference_hidden_states(sample_model, prompts)
    return {head: [pooled(rows, head) for rows in states] for head in HEADS}


@pytest.fixture(scope="module")
def generations(stock_engine: Callable[..., Any], sample_model: Path) -> dict[str, Any]:
    return run(stock_engine(sample_model, max_num_batched_tokens=2048, **SIZES), writers())


def writers() -> list[Job]:
    return [
        Job(f"writer-{i}", tokens(i, 5 + 60 * i, VOCABULARY), generate(20, logprobs=1), at=i)
        for i in range(4)
    ]


@pytest.mark.parametrize(
    ("head", "budget"), [(HEADS[0], 128), (HEADS[1], 2048), (HEADS[2], 512), (HEADS[3], 128)]
)
def test_float32_equals_transformers_and_generations_equal_stock_vllm(
    head: str,
    budget: int,
    prompts: list[list[int]],
    wanted: dict[str, list[np.ndarray]],
    generations: dict[str, Any],
    engine: Callable[..., Any],
    sample_model: Path,
) -> None:
    llm = engine(sample_model, policy="ibs", max_num_batched_tokens=budget, **SIZES)
    texts = [Job(f"text-{i}", prompt, embed(head)) for i, prompt in enumerate(prompts)]
    got = run(llm, [*writers(), *texts])
    for job, length, vector in zip(texts, LENGTHS, wanted[head], strict=True):
        assert cosine(got[job.name], vector) > 0.99999, (head, length)
        assert np.abs(got[job.name] - vector).max() < 1e-4, (head, length)
    for name, generation in generations.items():
        assert_same_generation(got[name], generation, name)
    assert_idle(llm)


def test_bfloat16_is_near_float32(engine: Callable[..., Any], sample_model: Path) -> None:
    """On text: random tokens in twos and threes lie as far off in transformers itself."""
    encode = AutoTokenizer.from_pretrained(sample_model).encode
    texts = [TEXT, *(TEXT[: TEXT.index(" ", n)] for n in (3, 12, 40, 90, 150, 300)), TEXT * 3]
    prompts = [encode(text) for text in texts]
    wanted = [pooled(rows, "mean") for rows in reference_hidden_states(sample_model, prompts)]
    llm = engine(sample_model, dtype="bfloat16", max_num_batched_tokens=64, **SIZES)
    got = embed_all(llm, prompts, "mean")
    cosines = [cosine(ours, theirs) for ours, theirs in zip(got, wanted, strict=True)]
    assert min(cosines) > 0.999, cosines
    assert np.mean(cosines) > 0.9999, cosines
