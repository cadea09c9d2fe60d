"""The operator's pooling function and token-level output: every hidden state kept, within bounds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import (
    Job,
    assert_idle,
    embed,
    generate,
    reference_hidden_states,
    run,
    runner_of,
    tokens,
)
from vllm import PoolingParams
from vllm.exceptions import VLLMValidationError

from orthrus.engine.buffer_room import BufferRoom
from orthrus.engine.config import OrthrusConfig

pytestmark = pytest.mark.engine

FUNCTION = "operator_functions:ends"
BUFFER = 256


def every_token(**kwargs: Any) -> PoolingParams:
    return PoolingParams(task="token_embed", **kwargs)


@pytest.fixture(scope="module")
def llm(engine: Callable[..., Any], tiny_model: Path) -> Any:
    settings = {"pooling_function": FUNCTION, "pooling_buffer_tokens": BUFFER}
    chunks = {"embed_chunk": 16}
    return engine(
        tiny_model, policy="ibs", policy_options=chunks, settings=settings, max_num_batched_tokens=256
    )


def test_token_level_output_equals_transformers_beside_everything_else(llm: Any, tiny_model: Path) -> None:
    prompts = [tokens(i, length) for i, length in enumerate((1, 2, 63, 64, 65, 150))]
    states = reference_hidden_states(tiny_model, prompts)
    jobs = [Job(f"t{i}", prompt, every_token(use_activation=False)) for i, prompt in enumerate(prompts)]
    others = [Job("g", tokens(9, 40), generate(12)), Job("m", prompts[-1], embed("mean"), at=2)]
    got = run(llm, [*jobs, *others])
    for job, wanted in zip(jobs, states, strict=True):
        assert got[job.name].shape == wanted.shape
        np.testing.assert_allclose(got[job.name], wanted.numpy(), atol=2e-4, rtol=1e-4, err_msg=job.name)
    assert len(got["g"].tokens[0]) == 12
    mean = states[-1].mean(0).numpy()
    np.testing.assert_allclose(got["m"], mean / np.linalg.norm(mean), atol=2e-5)
    assert_idle(llm)


def test_token_level_output_never_reads_the_cache_and_is_of_length_1(llm: Any) -> None:
    prompt = tokens(20, 130)
    run(llm, [Job("warm", prompt, generate(2))])
    first, again = (run(llm, [Job("t", prompt, every_token())])["t"] for _ in range(2))
    assert first.shape == (130, 128)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1.0, rtol=1e-5)


def test_the_function_gets_every_hidden_state(llm: Any, tiny_model: Path) -> None:
    prompt = tokens(30, 100)
    (states,) = reference_hidden_states(tiny_model, [prompt])
    got = run(llm, [Job("b", prompt, embed("buffered", use_activation=False))])["b"]
    np.testing.assert_allclose(got, np.concatenate([states[0], states[-1]]), atol=2e-4, rtol=1e-4)


def test_requests_wait_for_the_buffer_and_aborts_give_it_back(
    llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [
        Job(f"w{i}", tokens(40 + i, 100 + i), embed("buffered"), abort_at=6 if i % 5 == 2 else None)
        for i in range(14)
    ]
    writers = [Job(f"g{i}", tokens(60 + i, 20), generate(30)) for i in range(3)]
    states = runner_of(llm).pooler._bank._buffered
    held: list[int] = []
    admitted: list[bool] = []
    reserve, take = states.reserve, BufferRoom.take

    def watched_reserve(*args: Any) -> None:
        reserve(*args)
        held.append(sum(len(pages) for pages in states._held.values()))

    def watched_take(room: BufferRoom, request: Any) -> bool:
        admitted.append(take(room, request))
        return admitted[-1]

    with monkeypatch.context() as patched:
        patched.setattr(states, "reserve", watched_reserve)
        patched.setattr(BufferRoom, "take", watched_take)
        got = run(llm, [*writers, *jobs])
    assert max(held) == BUFFER // 64
    assert not all(admitted)
    for job in jobs:
        if job.abort_at is None:
            assert np.isfinite(got[job.name]).all(), job.name
    assert all(len(got[job.name].tokens[0]) == 30 for job in writers)
    assert_idle(llm)
    assert len(states._free) == BUFFER // 64


def test_a_failing_function_fails_its_own_request_only(
    llm: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.ERROR, logger="vllm.orthrus"):
        got = run(llm, [Job(f"n{n}", tokens(70, n), embed("buffered")) for n in (12, 13, 14)])
    assert np.isnan(got["n13"]).all()
    assert np.isfinite(got["n12"]).all()
    assert np.isfinite(got["n14"]).all()
    assert "failed: ValueError('thirteen')" in caplog.text
    assert_idle(llm)


def test_a_prompt_that_can_never_fit_is_refused_at_once(llm: Any) -> None:
    for params in (embed("buffered"), every_token()):
        with pytest.raises(VLLMValidationError, match="257 tokens, but the pooling buffer holds 256"):
            run(llm, [Job("big", tokens(80, 257), params)])
    assert np.isfinite(run(llm, [Job("fits", tokens(80, 256), embed("buffered"))])["fits"]).all()
    assert_idle(llm)


def test_without_a_buffer_neither_is_served(engine: Callable[..., Any], tiny_model: Path) -> None:
    plain = engine(tiny_model, policy="ibs", max_num_batched_tokens=64)
    with pytest.raises(VLLMValidationError, match=r"'buffered'.* is not allowed here"):
        run(plain, [Job("b", [5, 6], embed("buffered"))])
    with pytest.raises(VLLMValidationError, match="Unsupported task: 'token_embed'"):
        run(plain, [Job("t", [5, 6], every_token())])
    assert "buffered" not in OrthrusConfig().heads


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling_function": FUNCTION}, "set --pooling-buffer-tokens"),
        ({"pooling": "buffered"}, "name it with --pooling-function"),
        ({"pooling_buffer_tokens": -1}, "greater than or equal to 0"),
        ({"max_spans": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_do_not_fit_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OrthrusConfig(**settings)
