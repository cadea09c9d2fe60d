import base64
import json
import threading
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
from starlette.testclient import TestClient

from orthrus.bench.peers.openvino.app import Api


class FakeText:
    vocabulary = 1000

    def encode(self, text):
        return [ord(letter) for letter in text]

    def stream(self):
        return FakeStream()


class FakeStream:
    """Holds the last letter back, as a tokenizer does with half a character."""

    held = ""

    def write(self, ids):
        text = self.held + "".join(map(chr, ids))
        self.held = text[-1:]
        return text[:-1]

    def end(self):
        return self.held


class FakeEmbedder:
    def submit(self, batch):
        done = Future()
        if batch[0][0] == 13:
            raise BrokenProcessPool("the embedder died")
        done.set_result(np.array([[len(ids), ids[0]] for ids in batch], dtype=np.float32))
        return done


class FakeGenerator:
    """Tells from another thread, as the real one; the prompt's first id says what."""

    def __init__(self):
        self.seen, self.cancelled = [], []

    def cancel(self, generation):
        self.cancelled.append(generation)

    def submit(self, generation):
        self.seen.append(generation)
        threading.Thread(target=self._run, args=(generation,)).start()

    def _run(self, generation):
        for count in range(generation.settings["max_new_tokens"]):
            if generation.prompt[0] == 13 and count == 1:
                generation.tell(RuntimeError("the pipeline died"))
                return
            generation.tell([ord("a") + count])
        generation.tell(None)


@pytest.fixture
def generator():
    return FakeGenerator()


@pytest.fixture
def client(generator):
    with TestClient(Api("tiny", FakeEmbedder(), generator, FakeText()).app()) as client:
        yield client


def events(answer):
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_health_and_models(client):
    assert client.get("/health").status_code == 200
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny"]


@pytest.mark.parametrize(
    ("given", "vectors", "tokens"),
    [
        ("ab", [[2, 97]], 2),
        ([5, 6, 7], [[3, 5]], 3),
        (["ab", "c"], [[2, 97], [1, 99]], 3),
        ([[5], [6, 7]], [[1, 5], [2, 6]], 3),
    ],
)
def test_embeddings_of_texts_and_token_ids(client, given, vectors, tokens):
    body = {"model": "tiny", "input": given}
    plain = client.post("/v1/embeddings", json=body).json()
    assert [item["embedding"] for item in plain["data"]] == vectors
    assert [item["index"] for item in plain["data"]] == list(range(len(vectors)))
    assert plain["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    packed = client.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()
    decoded = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4").tolist() for item in packed["data"]]
    assert decoded == vectors


def test_a_stream_has_a_chunk_for_each_token_then_the_end_and_usage(client, generator):
    body = {
        "model": "tiny",
        "prompt": [5, 6],
        "max_tokens": 3,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    *chunks, last, usage, done = events(client.post("/v1/completions", json=body))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["", "a", "b"]
    assert (last["choices"][0]["text"], last["choices"][0]["finish_reason"]) == ("c", "length")
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert done == "[DONE]"
    assert generator.seen[0].settings == {"max_new_tokens": 3, "ignore_eos": True, "do_sample": False}
    assert generator.cancelled == generator.seen  # nobody listens any more


def test_a_plain_completion(client, generator):
    body = {"model": "tiny", "prompt": "xy", "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "seed": 7}
    answer = client.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == "abcd"
    assert answer["usage"]["prompt_tokens"] == 2
    settings = generator.seen[0].settings
    assert (settings["temperature"], settings["top_p"], settings["rng_seed"]) == (0.5, 0.9, 7)
    assert settings["do_sample"] is True


def test_a_failing_pipeline_is_an_error_in_the_stream_or_a_status(client):
    body = {"model": "tiny", "prompt": [13], "max_tokens": 3}
    first, error = events(client.post("/v1/completions", json={**body, "stream": True}))
    assert first["choices"]
    assert error["error"]["message"] == "the pipeline died"
    answer = client.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "the pipeline died")
    answer = client.post("/v1/embeddings", json={"model": "tiny", "input": [13]})
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "the embedder died")


@pytest.mark.parametrize(
    ("route", "body", "status", "message"),
    [
        ("completions", {"model": "other", "prompt": "x"}, 404, "served: 'tiny'"),
        ("completions", {"model": "tiny", "prompt": "x", "logprobs": 1}, 400, "logprobs: Extra inputs"),
        ("completions", {"model": "tiny", "prompt": []}, 400, "prompt"),
        ("completions", {"model": "tiny", "prompt": [1000]}, 400, "token id 1000: the vocabulary has 1000"),
        ("completions", {"model": "tiny", "prompt": "x", "n": 2}, 400, "n: Input should be 1"),
        ("embeddings", {"model": "tiny", "input": ["x", ""]}, 400, "input"),
        ("embeddings", {"model": "tiny", "input": "x", "dimensions": 2}, 400, "dimensions: Extra inputs"),
        ("embeddings", {"model": "tiny", "input": [-1]}, 400, "input"),
    ],
)
def test_what_the_adapter_has_not_is_refused(client, route, body, status, message):
    answer = client.post(f"/v1/{route}", json=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
