"""Spans, windows, token-level output, MaxSim and the operator's function over HTTP, on a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from checkpoints import WIDTH
from server_process import Server, serving
from transformers import AutoModelForCausalLM
from vectors import embed, embed_answer, ids, refused, rows

pytestmark = pytest.mark.engine

LENGTH = 128
BUFFER = 256


@pytest.fixture(scope="module")
def shapes(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ["--max-model-len", str(LENGTH), "--max-num-batched-tokens", "64", "--max-num-seqs", "8"]
    flags += ["--pooling-function", "operator_pooling:ends", "--pooling-buffer-tokens", str(BUFFER)]
    flags += ["--max-spans", "9", "--served-model-name", "tiny", "--matryoshka"]
    here = {"PYTHONPATH": str(Path(__file__).parent)}
    with serving(tmp_path_factory.mktemp("shapes") / "log", tiny_model, *flags, env=here) as started:
        yield started


@pytest.fixture
def client(shapes: Server) -> Iterator[httpx.Client]:
    with shapes.client() as opened:
        yield opened


@pytest.fixture(scope="module")
def hidden(tiny_model: Path) -> Any:
    network = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()

    def states(ids: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return network.model(torch.tensor([ids])).last_hidden_state[0].double().numpy()

    return states


def words(tokens: list[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector, axis=-1, keepdims=True)


def test_one_vector_for_each_span_of_each_input(client: httpx.Client, hidden: Any) -> None:
    documents = [ids(1, 100), ids(2, 70)]
    spans = [[[0, 100], [10, 20]], [[5, 6], [0, 33], [30, 70]]]
    answer = embed_answer(client, documents, spans=spans)
    wanted = [
        unit(hidden(document)[start:end].mean(0))
        for document, pairs in zip(documents, spans, strict=True)
        for start, end in pairs
    ]
    np.testing.assert_allclose(rows(answer), np.stack(wanted), atol=2e-5)
    assert answer["usage"]["prompt_tokens"] == 170


def test_character_spans_take_the_tokens_they_touch(client: httpx.Client) -> None:
    tokens = ids(3, 30)
    text = words(tokens)
    starts = [0, *(i + 1 for i, letter in enumerate(text) if letter == " "), len(text) + 1]
    by_characters = [[starts[4], starts[9] - 1], [starts[2] + 1, starts[3] + 1]]
    got = embed(client, text, spans=by_characters, span_unit="char")
    np.testing.assert_allclose(got, embed(client, tokens, spans=[[4, 9], [2, 4]]), atol=1e-6)


def test_spans_take_head_dimensions_and_normalize(client: httpx.Client, hidden: Any) -> None:
    document = ids(4, 90)
    got = embed(client, document, spans=[[20, 40]], pooling="last", normalize=False, dimensions=8)
    np.testing.assert_allclose(got[0], hidden(document)[39, :8], atol=2e-4)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"spans": [[0, 11]]}, "spans", "input[0]: spans[0] is [0, 11]; allowed: 0 <= start < end <= 10"),
        ({"spans": [[3, 3]]}, "spans", "spans[0] is [3, 3]"),
        ({"spans": []}, "spans", "a list of [start, end] pairs"),
        ({"spans": [[0, 1, 2]]}, "spans", "spans[0] is [0, 1, 2]"),
        ({"spans": [[0, True]]}, "spans", "spans[0] is [0, True]"),
        ({"spans": {"a": 1}}, "spans", "a list of [start, end] pairs"),
        ({"spans": [[0, 1]] * 10}, "spans", "at most 9"),
        ({"spans": [[0, 1]], "span_unit": "word"}, "span_unit", "allowed: token, char"),
        ({"spans": [[0, 1]], "span_unit": "char"}, "span_unit", "needs inputs that are text"),
        ({"span_unit": "char"}, "span_unit", "without spans"),
        ({"spans": [[0, 1]], "truncate_prompt_tokens": 5}, "spans", "combined with truncate_prompt_tokens"),
        ({"spans": [[0, 1]], "long_input": "split"}, "spans", "combined with long_input"),
        ({"spans": [[0, 1]], "pooling": "buffered"}, "spans", "mean, weighted_mean, cls and last only"),
        ({"long_input": "cut"}, "long_input", "allowed: refuse, split"),
        ({"long_input": "split", "overlap": LENGTH}, "overlap", f"allowed: 0 to {LENGTH // 2}"),
        ({"overlap": 3}, "overlap", "without long_input 'split'"),
        ({"long_input": "split", "truncate_prompt_tokens": 5}, "long_input", "drop truncate_prompt_tokens"),
    ],
)
def test_what_cannot_be_served_is_refused(
    client: httpx.Client, fields: dict[str, Any], param: str, message: str
) -> None:
    error = refused(client, input=ids(1, 10), **fields)
    assert message in error["message"]
    assert error["param"] == param


def test_spans_for_several_inputs_need_a_list_each(client: httpx.Client) -> None:
    error = refused(client, input=["w9", "w8"], spans=[[[0, 1]]])
    assert "spans has 1 items for 2 inputs" in error["message"]
    error = refused(client, input=["w9 w8", "w8"], spans=[[[0, 2]], [[0, 2]]])
    assert "input[1]: spans[0] is [0, 2]; allowed: 0 <= start < end <= 1" in error["message"]


def test_character_spans_lie_within_the_text_and_touch_a_token(client: httpx.Client) -> None:
    for span in ([100, 110], [-1, 2], [0, 6], [3, 3], [3, 1]):
        error = refused(client, input="w9 w8", spans=[[0, 2], span], span_unit="char")
        allowed = "0 <= start < end <= 5, the input's characters"
        assert error["message"].startswith(f"spans[1] is [{span[0]}, {span[1]}]; allowed: {allowed}")
    error = refused(client, input=["w9", "w9 w8"], spans=[[[0, 3]], [[0, 1]]], span_unit="char")
    assert "spans[0][0] is [0, 3]; allowed: 0 <= start < end <= 2" in error["message"]
    error = refused(client, input="w9 w8", spans=[[2, 3]], span_unit="char")
    assert "input[0]: no token covers the characters 2 to 3" in error["message"]


@pytest.mark.parametrize("as_text", [False, True])
def test_long_inputs_are_split_and_averaged_by_length(
    as_text: bool, client: httpx.Client, hidden: Any
) -> None:
    long, short = ids(5, 300), ids(6, 40)
    given = [words(long), words(short)] if as_text else [long, short]
    answer = embed_answer(client, given, long_input="split", overlap=16)
    windows = [long[0:128], long[112:240], long[224:300]]
    means = [len(window) * hidden(window).mean(0) for window in windows]
    wanted = [unit(sum(means) / sum(map(len, windows))), unit(hidden(short).mean(0))]
    np.testing.assert_allclose(rows(answer), np.stack(wanted), atol=2e-5)
    assert answer["usage"]["prompt_tokens"] == 340


def test_split_truncates_and_scales_the_average(client: httpx.Client, hidden: Any) -> None:
    long = ids(7, 200)
    got = embed(client, long, long_input="split", dimensions=8, normalize=False)[0]
    mean = (128 * hidden(long[:128]).mean(0) + 72 * hidden(long[128:]).mean(0)) / 200
    np.testing.assert_allclose(got, mean[:8], atol=2e-4)
    assert abs(np.linalg.norm(embed(client, long, long_input="split", dimensions=8)) - 1) < 1e-5


def test_what_would_become_too_many_vectors_or_windows_is_refused(client: httpx.Client) -> None:
    many = {"model": "tiny", "input": ids(6, 100), "spans": [[0, 1]] * 2049}
    response = client.post("/v1/embeddings", json=many)
    assert response.status_code == 422, response.text
    assert "2049 spans in one request; at most 2048 are allowed" in response.json()["error"]["message"]
    long = ids(7, 2049 * LENGTH)
    assert "into 2049 windows; at most 2048" in refused(client, input=long, long_input="split")["message"]


def test_without_split_a_long_input_is_refused(client: httpx.Client) -> None:
    assert "300 tokens" in refused(client, input=ids(5, 300))["message"]
    assert "300 tokens" in refused(client, input=ids(5, 300), long_input="refuse")["message"]


def test_token_level_output(client: httpx.Client, hidden: Any) -> None:
    documents = [ids(8, 100), ids(9, 1)]
    response = client.post("/pooling", json={"input": documents, "task": "token_embed"})
    assert response.status_code == 200, response.text
    for item, document in zip(response.json()["data"], documents, strict=True):
        np.testing.assert_allclose(np.array(item["data"]), unit(hidden(document)), atol=2e-5)
    default = client.post("/pooling", json={"input": documents[1]}).json()
    assert len(default["data"][0]["data"]) == WIDTH


def test_score_and_rerank_by_maxsim(client: httpx.Client, hidden: Any) -> None:
    query, documents = ids(10, 6), [ids(11, 30), ids(12, 50)]
    wanted = [(unit(hidden(query)) @ unit(hidden(document)).T).max(1).sum() for document in documents]
    texts = [words(document) for document in documents]
    body = {"text_1": words(query), "text_2": texts, "scoring": "maxsim"}
    scores = client.post("/score", json=body).json()["data"]
    np.testing.assert_allclose([item["score"] for item in scores], wanted, rtol=1e-4)
    body = {"query": words(query), "documents": texts, "scoring": "maxsim"}
    ranked = client.post("/rerank", json=body).json()["results"]
    assert [item["index"] for item in ranked] == np.argsort(wanted)[::-1].tolist()
    cosine = client.post("/score", json={"text_1": words(query), "text_2": texts[0]}).json()["data"][0]
    means = unit(hidden(query).mean(0)), unit(hidden(documents[0]).mean(0))
    assert abs(cosine["score"] - means[0] @ means[1]) < 1e-4
    error = refused(client, "/score", text_1="w9", text_2="w8", scoring="dot")
    assert "allowed: cosine, maxsim" in error["message"]


def test_the_operators_function(client: httpx.Client, hidden: Any) -> None:
    document = ids(13, 90)
    states = hidden(document)
    got = embed(client, document, pooling="buffered")[0]
    np.testing.assert_allclose(got, unit(np.concatenate([states[0], states[-1]])), atol=2e-5)


def test_a_failing_function_is_an_error_for_its_item_and_the_reason_is_logged(
    shapes: Server, client: httpx.Client
) -> None:
    error = refused(client, status=500, input=[ids(1, 12), ids(2, 13)], pooling="buffered")
    assert "input[1] is not finite" in error["message"]
    assert "pooling function 'operator_pooling:ends' failed: ValueError('thirteen')" in shapes.log.read_text()
    assert len(embed(client, [ids(1, 12)], pooling="buffered")[0]) == 2 * WIDTH


def test_more_buffered_requests_than_fit_wait_their_turn(client: httpx.Client) -> None:
    documents = [ids(20 + i, 100) for i in range(12)]
    got = embed(client, documents, pooling="buffered")
    np.testing.assert_allclose(got[3:4], embed(client, documents[3:4], pooling="buffered"), atol=1e-5)
