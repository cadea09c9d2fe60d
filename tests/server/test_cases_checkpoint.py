"""A server on a sentence-transformers form of the sample model: A2, A10, A13, A20, limits, Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import ExitStack

import httpx
import numpy as np
import pytest
from checkpoints import add_sentence_transformers_files, link_model
from server_process import Server
from vectors import cosines, embed, refused, token_ids

KEY = "the-right-key"
WIDTH = 576
NATIVE = 96
PROMPTS = {"query": "Represent this question: ", "document": "Represent this passage: "}
TEXTS = ["Where does the Rhine end?", "The Rhine ends in the North Sea. " * 9, "x"]
BODY = {
    "input": "a",
    "prompt": "a",
    "messages": [{"role": "user", "content": "a"}],
    "queries": "a",
    "query": "a",
    "documents": ["a"],
    "texts": ["a"],
    "max_tokens": 1,
}
COMPUTE = [
    "/v1/embeddings",
    "//v1/embeddings",
    "/v1//embeddings",
    "/v1/embeddings/",
    "/v1/%65mbeddings",
    "/V1/embeddings",
    "/v2/embed",
    "/pooling",
    "/pooling/",
    "/%70ooling",
    "/score",
    "/v1/score",
    "/rerank",
    "//rerank",
    "/v2/rerank",
    "/classify",
    "/tokenize",
    "/invocations",
    "/generative_scoring",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/health/../v1/embeddings",
    "/metrics/../score",
    "/health/",
    "/orthrus/state",
    "/openapi.json",
    "/docs",
    "/load",
]


@pytest.fixture(scope="module")
def checkpoint(sample_model, tmp_path_factory):
    folder = link_model(sample_model, tmp_path_factory.mktemp("form") / "checkpoint")
    return add_sentence_transformers_files(folder, WIDTH, dense=NATIVE, prompts=PROMPTS)


@pytest.fixture(scope="module")
def own(checkpoint, tmp_path_factory):
    """Ends with Ctrl-C under load: a signal to every process, as a terminal sends it."""
    flags = ["--served-model-name", "form", "--max-model-len", "512", "--matryoshka", "--api-key", KEY]
    flags += ["--max-request-bytes", "20000", "--max-open-requests", "2"]
    with Server(tmp_path_factory.mktemp("own") / "log", checkpoint, *flags, key=KEY) as started:
        started.wait_until_ready()
        yield started
        answers: list[httpx.Response] = []
        load = threading.Thread(target=lambda: answers.append(long_generation(started)))
        load.start()
        started.wait_until_running(1)
        os.killpg(started.process.pid, signal.SIGINT)
        assert started.wait() == 0, started.tail()
        load.join()
        assert [answer.status_code for answer in answers] == [503]
        assert "stopping" in answers[0].text
        assert "Traceback" not in started.log.read_text()


def long_generation(server):
    body = {"prompt": "Tell a story.", "max_tokens": 490, "ignore_eos": True}
    with server.client() as client:
        return client.post("/v1/completions", json=body)


@pytest.fixture
def client(own):
    with own.client() as opened:
        yield opened


def test_a2_dimensions_truncate_and_then_normalise(client):
    native = embed(client, TEXTS)
    assert native.shape == (3, NATIVE)
    assert np.allclose(native, embed(client, TEXTS, dimensions=NATIVE), atol=1e-5)
    for size in (1, 40, NATIVE - 1):
        smaller = embed(client, TEXTS, dimensions=size)
        expected = native[:, :size] / np.linalg.norm(native[:, :size], axis=1, keepdims=True)
        assert np.allclose(smaller, expected, atol=1e-5)
        assert np.linalg.norm(smaller, axis=1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("value", [0, -1, NATIVE + 1, WIDTH, 1.5, "40", True, [40]])
def test_a2_dimensions_out_of_range_are_refused_with_the_range(client, value):
    error = refused(client, input="a", dimensions=value)
    assert error["param"] == "dimensions"
    assert f"1 to {NATIVE}" in error["message"]


@pytest.fixture(scope="module")
def oracle(checkpoint):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(checkpoint), device="cpu", model_kwargs={"dtype": "float32"})


def test_a10_the_checkpoints_own_pooling_and_layers_as_sentence_transformers_has_them(
    client, checkpoint, own, oracle
):
    expected = oracle.encode(TEXTS, batch_size=1)
    ours = embed(client, TEXTS)
    assert cosines(ours, expected).min() > 0.99999
    assert np.allclose(ours, expected, atol=1e-4)
    assert f"pooling head 'weighted_mean' (from {checkpoint})" in own.log.read_text()
    state = client.get("/orthrus/state").json()["config"]["checkpoint"]
    assert (state["head"], state["size"], state["normalize"]) == ("weighted_mean", NATIVE, True)


def test_a_request_may_ask_for_another_head_before_the_same_layers(client):
    heads = [embed(client, TEXTS[:2], pooling=head) for head in ("weighted_mean", "mean", "last")]
    assert np.allclose(heads[0], embed(client, TEXTS[:2]), atol=1e-6)
    assert all(cosines(heads[0], other).max() < 0.9999 for other in heads[1:])
    assert heads[1].shape == (2, NATIVE)


def test_a13_an_instruction_is_applied_once_and_differs_by_side(client, oracle):
    text = TEXTS[0]
    found = {}
    for kind, prompt in PROMPTS.items():
        body = {"model": "form", "texts": [text], "input_type": kind, "embedding_types": ["float"]}
        response = client.post("/v2/embed", json=body)
        assert response.status_code == 200, response.text
        found[kind] = np.array(response.json()["embeddings"]["float"])
        # The model has a chat template, but sentence-transformers puts its prompts before the text.
        assert np.allclose(found[kind], embed(client, [prompt + text]), atol=1e-5)
        assert cosines(found[kind], oracle.encode([text], prompt_name=kind))[0] > 0.99999
    assert cosines(found["query"], found["document"])[0] < 0.99999
    body = {"model": "form", "texts": [text], "input_type": "poem", "embedding_types": ["float"]}
    assert "query" in client.post("/v2/embed", json=body).json()["error"]["message"]


@pytest.mark.parametrize("path", COMPUTE)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": KEY},
        {"X-API-Key": KEY},
        {"Authorization": "Bearer"},
    ],
)
def test_a20_every_path_asks_for_the_key(own, path, headers):
    with httpx.Client(timeout=30) as anyone:
        # The path as it is: httpx would resolve dots.
        url = httpx.URL(own.url).copy_with(raw_path=path.encode())
        for method in ("POST", "GET"):
            response = anyone.request(method, url, json=BODY, headers=headers)
            assert response.status_code == 401, (method, path, response.text)
            assert response.json()["error"]["message"] == "a valid API key is required (Bearer)"


def test_a20_public_paths_and_the_right_key(own, client):
    with httpx.Client(base_url=own.url, timeout=30) as anyone:
        for path in ("/health", "/ping", "/metrics", "/version"):
            assert anyone.get(path).status_code == 200, path
    for path in ("/v1/models", "/openapi.json", "/docs", "/orthrus/state"):
        assert client.get(path).status_code == 200, path
    scheme = {"Authorization": f"bearer {KEY}"}
    assert httpx.get(f"{own.url}/v1/models", headers=scheme).status_code == 200


def test_a_body_over_the_limit_is_413_before_it_is_read(client):
    def pieces():
        for _ in range(30):
            yield b" " * 1000

    for path in ("/v1/embeddings", "/v1/completions", "/score"):
        whole = client.post(path, json={"input": "a" * 20001})
        assert whole.status_code == 413, path
        assert "20000" in whole.json()["error"]["message"]
        chunked = client.post(path, content=pieces(), headers={"content-type": "application/json"})
        assert chunked.status_code == 413, path
        assert "20000" in chunked.text


def test_one_request_too_many_is_429_with_retry_after(own, client):
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1:{own.port}\r\nContent-Type: application/json\r\n"
    with ExitStack() as slow:
        for _ in range(2):  # two clients that never send the body they have announced
            connection = slow.enter_context(socket.create_connection(("127.0.0.1", own.port)))
            connection.sendall(f"{head}Authorization: Bearer {KEY}\r\nContent-Length: 99\r\n\r\n{{".encode())
        end = time.monotonic() + 30
        while (response := client.post("/v1/embeddings", json={"input": "a"})).status_code == 200:
            assert time.monotonic() < end, "the two open requests were never counted"
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert "already works on 2 requests" in response.json()["error"]["message"]
        assert client.get("/health").status_code == 200
    own.wait_until_idle()
    assert embed(client, "a").shape == (1, NATIVE)


def test_generation_is_not_touched_by_the_pooling_files(client):
    body = {"prompt": "The Rhine ends in", "max_tokens": 8, "temperature": 0}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] == len(token_ids(client, "The Rhine ends in"))
    assert response.json()["choices"][0]["text"]
