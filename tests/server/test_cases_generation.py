"""Case A18 over HTTP: generations beside embeddings equal those made without."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from server_process import Server

CHAT = [{"role": "user", "content": "Name three rivers of Europe."}]
LONG = " ".join(f"Fact {i}: rivers run to the sea." for i in range(40))
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "maximum": 99}},
    "required": ["city", "count"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "seed": {"seed": 7, "temperature": 1.0},
    "seed, chunked prompt": {"prompt": LONG, "seed": 7, "temperature": 1.0},
    "n": {"n": 3, "seed": 3, "temperature": 0.9},
    "logprobs": {"logprobs": 3, "temperature": 0},
    "penalties": {
        "temperature": 0,
        "frequency_penalty": 1.1,
        "presence_penalty": 0.4,
        "repetition_penalty": 1.2,
    },
    "min_p": {"seed": 5, "temperature": 1.2, "min_p": 0.1},
    "stop": {"temperature": 0, "stop": ["."], "max_tokens": 40},
}


@contextmanager
def embeddings_without_pause(server: Server) -> Iterator[list[int]]:
    """Two clients that embed one text after another; yields the statuses of their answers."""
    done = threading.Event()
    statuses: list[int] = []

    def work(name: int) -> None:
        with server.client() as client:
            count = 0
            while not done.is_set():
                count += 1
                text = f"Worker {name}, text {count}: " + "hills and lakes, " * (count % 6)
                statuses.append(client.post("/v1/embeddings", json={"input": [text, text]}).status_code)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        done.set()
        for thread in threads:
            thread.join()


def complete(client, **fields):
    body = {"prompt": "The rivers of Europe are", "max_tokens": 12, "ignore_eos": True, **fields}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def test_a18_completions_beside_embeddings_equal_those_alone(server, client):
    alone = {name: complete(client, **fields) for name, fields in COMPLETIONS.items()}
    with embeddings_without_pause(server) as statuses:
        beside = {name: complete(client, **fields) for name, fields in COMPLETIONS.items()}
    assert len(statuses) > 2
    assert set(statuses) == {200}
    for name, choices in alone.items():
        assert [c["text"] for c in beside[name]] == [c["text"] for c in choices], name
        assert [c["finish_reason"] for c in beside[name]] == [c["finish_reason"] for c in choices], name
    ours, theirs = (x["logprobs"][0]["logprobs"]["token_logprobs"] for x in (beside, alone))
    assert ours == pytest.approx(theirs, abs=1e-3)
    assert len(beside["n"]) == 3


def test_a18_a_stream_beside_embeddings_equals_the_answer_alone(server, client):
    body = {"messages": CHAT, "max_tokens": 24, "temperature": 0}
    alone = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    pieces = []
    with (
        embeddings_without_pause(server),
        client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response,
    ):
        for line in response.iter_lines():
            if line.startswith("data: {"):
                pieces.append(json.loads(line[6:])["choices"][0]["delta"].get("content") or "")
    assert "".join(pieces) == alone
    assert len(pieces) > 4


def test_a18_structured_output_beside_embeddings(server, client):
    body = {"messages": CHAT, "max_tokens": 60, "temperature": 0, "response_format": JSON_SCHEMA}
    alone = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    with embeddings_without_pause(server):
        beside = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    assert beside == alone
    answer = json.loads(beside)
    assert set(answer) == {"city", "count"}
    assert isinstance(answer["count"], int)
