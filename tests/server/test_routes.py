"""Fields and limits on the routes beside /v1/embeddings, over a real server."""

from __future__ import annotations

import numpy as np
import pytest
from vectors import embed, refused

SCORES = ("/score", "/v1/score")
RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank")
GOOD = {
    "/v1/embeddings": {"input": "a"},
    "/pooling": {"input": "a"},
    **{path: {"queries": "a", "documents": ["b"]} for path in SCORES},
    **{path: {"query": "a", "documents": ["b"]} for path in RERANKS},
    "/v2/embed": {"texts": ["a"]},
}
EVERY_ROUTE = pytest.mark.parametrize("path", GOOD)


@EVERY_ROUTE
def test_a_field_that_a_route_cannot_honour_is_named(client, path):
    assert client.post(path, json=GOOD[path]).status_code == 200
    field = "scoring" if path == "/v1/embeddings" else "long_input"
    error = refused(client, path, **GOOD[path], **{field: "split"})
    assert error["param"] == field
    assert f"{field} has no effect on /" in error["message"]


@EVERY_ROUTE
def test_a15_every_route_bounds_its_inputs(client, path):
    field = next(name for name in ("input", "documents", "texts") if name in GOOD[path])
    error = refused(client, path, 422, **{**GOOD[path], field: ["a"] * 65})
    assert error["message"].startswith(f"{field} has 65 items; at most 64 are allowed")
    assert client.post(path, json={**GOOD[path], field: ["a"] * 64}).status_code == 200
    assert "1048576" in refused(client, path, 413, **{**GOOD[path], field: ["a" * 2**20]})["message"]


@EVERY_ROUTE
def test_booleans_are_no_numbers(client, path):
    assert refused(client, path, **GOOD[path], priority=True)["param"] == "priority"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
@pytest.mark.parametrize("ids", [[True], [[True, 2]], [1.0], [1.5], [[1, 2.0]]])
def test_a4_only_whole_numbers_are_token_ids(client, path, ids):
    assert refused(client, path, input=ids)["param"] == "input"
    assert refused(client, path, input="a", truncate_prompt_tokens=True)["param"] == "truncate_prompt_tokens"


def test_pooling_honours_normalize_head_and_the_native_dimensions(client):
    def pooled(**fields):
        response = client.post("/pooling", json={"input": "a cat", **fields})
        assert response.status_code == 200, response.text
        return np.array(response.json()["data"][0]["data"])

    for fields in ({}, {"normalize": False}, {"pooling": "last"}, {"dimensions": 576}):
        assert np.abs(pooled(**fields) - embed(client, "a cat", **fields)[0]).max() < 1e-5
    assert refused(client, "/pooling", input="a", dimensions=8)["param"] == "dimensions"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/score", {"text_1": "a", "text_2": 3}, "text_2"),
        ("/rerank", {"query": "a", "documents": ["b", 3]}, "documents"),
        ("/pooling", {"input": 3}, "input"),
        ("/pooling", {"input": "a", "embed_dtype": "none"}, "embed_dtype"),
        ("/v1/embeddings", {"input": "a", "embed_dtype": "none"}, "embed_dtype"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["none"]}, "embedding_types"),
        ("/v1/completions", {"prompt": "a", "stop": [3]}, "stop"),
    ],
)
def test_a_wrong_value_is_one_sentence(client, path, body, field):
    error = refused(client, path, **body)
    assert error["param"] == field
    assert "\n" not in error["message"]
    assert error["message"].startswith(f"{field}")
    assert "allowed: " in error["message"]


@EVERY_ROUTE
@pytest.mark.parametrize(
    ("content", "said"), [(b"", ""), (b"[1]", "must be a JSON object"), (b'{"a":', "is not JSON")]
)
def test_a_body_that_is_no_object_is_one_sentence(client, path, content, said):
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "body")
    assert said in error["message"]
    assert "\n" not in error["message"]
