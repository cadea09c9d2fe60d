"""A client that goes away frees its slot, its KV blocks and its pooling state at once."""

from __future__ import annotations

import json

import httpx
import pytest
from vectors import embed

LONG = "one two three four five six seven eight nine ten " * 80


def held(client):
    state = client.get("/orthrus/state").json()
    return sum(state["scheduler"].values())


def test_an_idle_engine_holds_nothing(server, client):
    embed(client, ["a", "b"])
    state = server.wait_until_idle()
    assert set(state["scheduler"].values()) == {0}
    assert all(set(worker.values()) == {0} for worker in state["workers"])
    assert state["config"]["policy"] == "ibs"


def test_a_client_that_leaves_in_the_middle_of_its_embeddings(server, client):
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/embeddings", json={"input": [LONG] * 64}, timeout=1.5)
    # 64 inputs of about 800 tokens take far longer than this wait.
    server.wait_until_idle(timeout_s=10)
    assert embed(client, "a").shape == (1, 576)


def test_a_client_that_leaves_in_the_middle_of_a_stream(server, client):
    body = {"prompt": "Tell a story.", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: {"))
        assert json.loads(next(lines)[6:])["choices"]
        assert held(client) > 0
    server.wait_until_idle(timeout_s=10)


def test_a_client_that_leaves_while_its_generation_is_not_streamed(server, client):
    body = {"prompt": "Tell a story.", "max_tokens": 900, "ignore_eos": True, "n": 4}
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=body, timeout=1)
    server.wait_until_idle(timeout_s=10)
