"""`/score` and `/rerank`, cosine and MaxSim, while a generation runs: right values, and the same tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from server_process import Server, serving
from transformers import AutoModelForCausalLM
from vectors import ids

pytestmark = pytest.mark.engine

LENGTH = 2048
BODY = {"prompt": [5, 6, 7], "max_tokens": 600, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "steps.jsonl"


@pytest.fixture(scope="module")
def scoring(tiny_model: Path, trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ["--max-model-len", str(LENGTH), "--max-num-batched-tokens", "64", "--max-num-seqs", "4"]
    flags += ["--pooling-buffer-tokens", "512", "--served-model-name", "tiny", "--trace-steps", str(trace)]
    with serving(tmp_path_factory.mktemp("scoring") / "log", tiny_model, *flags) as started:
        yield started


@pytest.fixture
def client(scoring: Server) -> Iterator[httpx.Client]:
    with scoring.client() as opened:
        yield opened


def words(tokens: list[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector, axis=-1, keepdims=True)


QUERY = ids(1, 6)
DOCUMENTS = [ids(2, 30), ids(3, 150), ids(4, 1), ids(5, 90)]


@pytest.fixture(scope="module")
def wanted(tiny_model: Path) -> dict[str, np.ndarray]:
    """The scores of DOCUMENTS for QUERY, computed from transformers' hidden states."""
    network = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()

    def states(tokens: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return network.model(torch.tensor([tokens])).last_hidden_state[0].double().numpy()

    query, documents = states(QUERY), [states(document) for document in DOCUMENTS]
    return {
        "cosine": np.array([unit(query.mean(0)) @ unit(document.mean(0)) for document in documents]),
        "maxsim": np.array([(unit(query) @ unit(d).T).max(1).sum() for d in documents]),
    }


def score(client: httpx.Client, scoring: str) -> list[float]:
    body = {"text_1": words(QUERY), "text_2": [words(d) for d in DOCUMENTS], "scoring": scoring}
    response = client.post("/score", json=body)
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [item["index"] for item in data] == list(range(len(DOCUMENTS)))
    return [item["score"] for item in data]


def rerank(client: httpx.Client, scoring: str) -> list[tuple[int, float]]:
    body = {"query": words(QUERY), "documents": [words(d) for d in DOCUMENTS], "scoring": scoring}
    response = client.post("/rerank", json=body)
    assert response.status_code == 200, response.text
    return [(item["index"], item["relevance_score"]) for item in response.json()["results"]]


class Writer:
    """One generation after the other in a thread, until the block ends; `texts` are the answers."""

    def __init__(self, server: Server) -> None:
        self._server, self._enough = server, threading.Event()
        self.texts: list[str] = []
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._thread.start()
        self._server.wait_until_running(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()

    def _write(self) -> None:
        with self._server.client() as client:
            while not self._enough.is_set():
                self.texts.append(written(client))


def written(client: httpx.Client) -> str:
    response = client.post("/v1/completions", json=BODY)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def test_scores_alone_are_those_beside_a_generation(client: httpx.Client, wanted: dict[str, Any]) -> None:
    for name, values in wanted.items():
        np.testing.assert_allclose(score(client, name), values, atol=2e-4)


def test_scores_are_right_while_a_generation_runs_and_leave_it_as_it_is(
    scoring: Server, client: httpx.Client, trace: Path, wanted: dict[str, np.ndarray]
) -> None:
    alone = written(client)
    traced = len(trace.read_text().splitlines())
    with Writer(scoring) as writer:
        for name, values in wanted.items():
            np.testing.assert_allclose(score(client, name), values, atol=2e-4, err_msg=name)
            ranked = rerank(client, name)
            assert [index for index, _ in ranked] == np.argsort(values)[::-1].tolist(), name
            np.testing.assert_allclose([s for _, s in ranked], np.sort(values)[::-1], atol=2e-4, err_msg=name)
    assert writer.texts == [alone] * len(writer.texts) != []
    steps = [json.loads(line)["tokens"] for line in trace.read_text().splitlines()[traced:]]
    embedding = [step for step in steps if step["embed"]]
    # MaxSim computes all 277 tokens on both routes, in steps of 64 (cosine may find its prefixes cached).
    assert len(embedding) >= 8
    # Between two generations there may be none to mix with.
    assert sum(step["decode"] > 0 for step in embedding) > len(embedding) / 2
