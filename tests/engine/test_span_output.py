"""Several vectors from one pass over a document, on the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import (
    Job,
    assert_idle,
    cosine,
    generate,
    pooled,
    reference_hidden_states,
    run,
    tokens,
)
from vllm import PoolingParams
from vllm.exceptions import VLLMValidationError

pytestmark = pytest.mark.engine

SPANS = [[0, 200], [0, 1], [199, 200], [30, 34], [31, 129], [64, 128], [100, 200]]


def spans(head: str, pairs: list[list[int]], **kwargs: Any) -> PoolingParams:
    return PoolingParams(task="embed", extra_kwargs={"pooling": head, "spans": pairs}, **kwargs)


@pytest.fixture(scope="module")
def llm(engine: Callable[..., Any], tiny_model: Path) -> Any:
    return engine(tiny_model, policy="ibs", policy_options={"embed_chunk": 48}, max_num_batched_tokens=64)


@pytest.mark.parametrize("head", ["mean", "weighted_mean", "cls", "last"])
def test_each_span_is_pooled_over_its_tokens(head: str, llm: Any, tiny_model: Path) -> None:
    prompt = tokens(1, 200)
    (states,) = reference_hidden_states(tiny_model, [prompt])
    whole = PoolingParams(task="embed", extra_kwargs={"pooling": head})
    jobs = [
        # The document's blocks are cached by then, and must not be read.
        Job("before", prompt, generate(1)),
        Job("spans", prompt, spans(head, SPANS), at=8),
        Job("whole", prompt, whole, at=8),
        Job("writer", tokens(2, 30), generate(20), at=7),
    ]
    got = run(llm, jobs)
    assert got["spans"].shape == (len(SPANS), 128)
    for (start, end), vector in zip(SPANS, got["spans"], strict=True):
        assert cosine(vector, pooled(states[start:end], head)) > 0.99999, (start, end)
        assert abs(np.linalg.norm(vector) - 1) < 1e-5
    np.testing.assert_allclose(got["spans"][0], got["whole"], atol=2e-5)
    assert len(got["writer"].tokens[0]) == 20
    assert_idle(llm)


def test_documents_with_and_without_spans_and_aborts_leave_nothing(llm: Any) -> None:
    jobs = [
        Job(
            f"d{i}",
            tokens(i, 60 + 20 * i),
            spans("mean", [[i, 30 + i], [40, 50]], use_activation=False),
            at=i,
            abort_at=i + 3 if i % 3 == 0 else None,
        )
        for i in range(9)
    ]
    got = run(llm, jobs)
    for i, job in enumerate(jobs):
        if job.abort_at is None:
            assert got[job.name].shape == (2, 128), i
    assert_idle(llm)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [([[0, 11]], r"allowed: 0 <= start < end <= 10"), ([[0, 1]] * 257, "at most 256"), ([7], r"spans\[0\]")],
)
def test_spans_outside_the_prompt_are_refused_before_the_engine(pairs: Any, message: str, llm: Any) -> None:
    with pytest.raises(VLLMValidationError, match=message):
        run(llm, [Job("bad", tokens(1, 10), spans("mean", pairs))])
    assert_idle(llm)
