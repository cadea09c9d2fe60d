"""`Engine.embed` with spans and windows, and `Engine.embed_tokens`, against transformers' hidden states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import generate, reference_hidden_states, tokens

from orthrus import Engine

pytestmark = pytest.mark.engine

LENGTH = 128
SMALL: dict[str, Any] = {
    "enforce_eager": True,
    "dtype": "float32",
    "block_size": 32,
    "max_model_len": LENGTH,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 128,
}


@pytest.fixture(scope="module")
def api(tiny_model: Path) -> Iterator[Engine]:
    with Engine(str(tiny_model), **SMALL, matryoshka=True, pooling_buffer_tokens=256, max_spans=9) as engine:
        yield engine


@pytest.fixture(scope="module")
def hidden(tiny_model: Path) -> Callable[[list[int]], np.ndarray]:
    return lambda ids: reference_hidden_states(tiny_model, [ids])[0].double().numpy()


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector, axis=-1, keepdims=True)


def means(states: np.ndarray, spans: list[tuple[int, int]]) -> list[np.ndarray]:
    return [unit(states[start:end].mean(0)) for start, end in spans]


def test_one_vector_for_each_span_of_each_input(api: Engine, hidden: Any) -> None:
    documents = [tokens(1, 100), tokens(2, 70)]
    spans = [[(0, 100), (10, 20)], [(5, 6), (0, 33), (30, 70)]]
    got = api.embed(documents, spans=spans)
    wanted = [*means(hidden(documents[0]), spans[0]), *means(hidden(documents[1]), spans[1])]
    assert (got.shape, got.dtype) == ((5, 128), np.float32)
    np.testing.assert_allclose(got, wanted, atol=2e-5)
    one = api.embed(documents[0], spans=[(20, 40)], pooling="last", normalize=False, dimensions=8)
    np.testing.assert_allclose(one, hidden(documents[0])[39:40, :8], atol=2e-4)


def test_character_spans_take_the_tokens_they_touch(api: Engine) -> None:
    got = api.embed("w30 w31 w32 w33", spans=[(4, 7), (5, 9)], span_unit="char")
    np.testing.assert_allclose(got, api.embed([30, 31, 32, 33], spans=[(1, 2), (1, 3)]), atol=1e-6)


def test_long_inputs_are_split_and_averaged_by_length(api: Engine, hidden: Any) -> None:
    long, short = tokens(5, 300), tokens(6, 40)
    windows = [long[0:128], long[112:240], long[224:300]]
    mean = sum(len(window) * hidden(window).mean(0) for window in windows) / sum(map(len, windows))
    got = api.embed([long, short], long_input="split", overlap=16)
    np.testing.assert_allclose(got, [unit(mean), unit(hidden(short).mean(0))], atol=2e-5)
    raw = api.embed(long, long_input="split", overlap=16, normalize=False, dimensions=8)
    np.testing.assert_allclose(raw, mean[None, :8], atol=2e-4)
    with pytest.raises(ValueError, match="300 tokens"):
        api.embed(long, long_input="refuse")


def test_one_vector_for_each_token(api: Engine, hidden: Any) -> None:
    documents = [tokens(8, 100), tokens(9, 1)]
    first, second = api.embed_tokens(documents)
    assert (first.shape, second.shape, first.dtype) == ((100, 128), (1, 128), np.float32)
    np.testing.assert_allclose(first, unit(hidden(documents[0])), atol=2e-5)
    np.testing.assert_allclose(second, unit(hidden(documents[1])), atol=2e-5)
    (raw,) = api.embed_tokens(documents[0], normalize=False, dimensions=8, truncate_prompt_tokens=20)
    np.testing.assert_allclose(raw, hidden(documents[0][:20])[:, :8], atol=2e-4)


async def test_the_async_calls_agree_beside_a_generation(api: Engine) -> None:
    document = tokens(3, 90)
    spans, rows, split, written = await asyncio.gather(
        api.embed_async(document, spans=[(0, 45), (45, 90)]),
        api.embed_tokens_async([document]),
        api.embed_async(document * 2, long_input="split"),
        api.generate_async(document, generate(30)),
    )
    np.testing.assert_allclose(spans, api.embed(document, spans=[(0, 45), (45, 90)]), atol=1e-5)
    np.testing.assert_allclose(rows[0], api.embed_tokens(document)[0], atol=1e-5)
    np.testing.assert_allclose(split, api.embed(document * 2, long_input="split"), atol=1e-5)
    assert written[0].outputs[0].token_ids == api.generate(document, generate(30))[0].outputs[0].token_ids


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"spans": [(0, 11)]}, ValueError, r"input\[0\]: spans\[0\] is \[0, 11\]; allowed: .* <= 10"),
        ({"spans": [(0, 1)] * 10}, ValueError, "at most 9"),
        ({"spans": [(0, 1, 2)]}, ValueError, r"spans\[0\] is \[0, 1, 2\]"),
        ({"span_unit": "char"}, ValueError, "without spans"),
        ({"spans": [(0, 1)], "span_unit": "char"}, ValueError, "needs inputs that are text"),
        ({"spans": [(0, 1)], "long_input": "split"}, ValueError, "combined with long_input"),
        ({"overlap": 3}, ValueError, "without long_input 'split'"),
        ({"long_input": "split", "overlap": LENGTH}, ValueError, "allowed: 0 to 64"),
        ({"overlaps": 3}, TypeError, "'overlaps'; allowed: .*overlap"),
    ],
)
def test_what_cannot_be_served_is_refused(api: Engine, options: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        api.embed(tokens(1, 10), **options)


def test_token_level_options_are_its_own(api: Engine) -> None:
    with pytest.raises(TypeError, match="'pooling'; allowed: normalize, dimensions"):
        api.embed_tokens("w30", pooling="mean")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="at most 128"):
        api.embed_tokens(tokens(1, 257))


def test_token_level_output_needs_a_buffer(tiny_model: Path) -> None:
    with Engine(str(tiny_model), **SMALL) as engine, pytest.raises(ValueError, match="pooling_buffer_tokens"):
        engine.embed_tokens("w30")
