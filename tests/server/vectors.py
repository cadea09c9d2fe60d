"""Inputs of the tiny model, and reading embeddings answers."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np

# The special tokens w0, w1 and w2 are found inside longer words too: w12 as text is w1 and an unknown 2.
SPEAKABLE = [*range(5, 10), *range(30, 100)]


def ids(seed: int, length: int) -> list[int]:
    """Token ids of the tiny model that are the same tokens when they are spelled out."""
    return np.random.default_rng(seed).choice(SPEAKABLE, length).tolist()


def embed(client: httpx.Client, given: Any, **fields: Any) -> np.ndarray:
    """The vectors [n, d] of an embeddings request that must succeed."""
    return rows(embed_answer(client, given, **fields))


def embed_answer(client: httpx.Client, given: Any, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/embeddings", json={"input": given, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def rows(answer: dict[str, Any]) -> np.ndarray:
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return np.array([decode(item["embedding"]) for item in answer["data"]], dtype=np.float64)


def decode(vector: str | list[float]) -> np.ndarray:
    if isinstance(vector, str):
        return np.frombuffer(base64.b64decode(vector), "<f4")
    return np.array(vector)


def refused(
    client: httpx.Client, path: str = "/v1/embeddings", status: int = 400, **body: Any
) -> dict[str, Any]:
    """The error object of a request that must be refused with `status`."""
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def token_ids(client: httpx.Client, text: str) -> list[int]:
    response = client.post("/tokenize", json={"prompt": text})
    ids: list[int] = response.json()["tokens"]
    return ids
