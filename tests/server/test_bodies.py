"""Bodies that are no request: every one gets a 4xx with a message, and the server goes on."""

from __future__ import annotations

import json
import time

import httpx
import pytest
from vectors import embed

JSON = {"content-type": "application/json"}
BROKEN = {
    "empty": b"",
    "cut": b'{"input":',
    "list": b"[]",
    "null": b"null",
    "string": b'"input"',
    "deep": b'{"input":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep but parsed": b'{"input":' + b"[" * 600 + b"]" * 600 + b"}",
    "deep field": b'{"input":"a","pooling":' + b"[" * 800 + b"]" * 800 + b"}",
    "too many digits": b'{"input":[1' + b"0" * 5000 + b"]}",
    "huge id": b'{"input":[1' + b"0" * 400 + b"]}",
    "infinite id": b'{"input":[1e400]}',
    "NaN dimensions": b'{"input":"a","dimensions":NaN}',
    "Infinity truncation": b'{"input":"a","truncate_prompt_tokens":Infinity}',
    "huge truncation": b'{"input":"a","truncate_prompt_tokens":9' + b"9" * 400 + b"}",
    "surrogate": b'{"input":"a\\ud800"}',
    "surrogate in a list": b'{"input":["a","\\udfff"]}',
    "surrogate model": b'{"input":"a","model":"\\ud800"}',
    "not UTF-8": b'{"input":"\xff\xfe"}',
    "100k characters": b'{"input":"' + b"x" * 100_000 + b'"}',
}


def post(client: httpx.Client, content: bytes, path: str = "/v1/embeddings") -> httpx.Response:
    return client.post(path, content=content, headers=JSON)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_body_is_a_400_with_a_message(client, name):
    response = post(client, BROKEN[name])
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert 0 < len(error["message"]) < 1000
    assert error["code"] == 400
    assert error["param"]
    assert embed(client, "a").shape == (1, 576)


def test_a_surrogate_is_named_with_its_place(client):
    error = post(client, BROKEN["surrogate in a list"]).json()["error"]
    assert "input[1] has a lone surrogate ('\\udfff') at character 0" in error["message"]


@pytest.mark.parametrize("name", ["cut", "deep", "surrogate", "not UTF-8", "too many digits"])
def test_a_broken_body_on_the_generating_routes_is_no_server_error(client, name):
    for path in ("/v1/completions", "/v1/chat/completions", "/pooling", "/score", "/v2/embed"):
        response = post(client, BROKEN[name].replace(b"input", b"prompt"), path)
        assert 400 <= response.status_code < 500, (path, response.text)
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "text",
    [
        "a\u0000b",
        "naïve café",
        "\U0001f600\U0001f9d1\u200d\U0001f680",
        "\u202eabc",
        "\ufeff",
        "\n\t\r",
        "汉字",
    ],
)
def test_any_unicode_text_is_embedded(client, text):
    assert embed(client, [text, "a"]).shape == (2, 576)


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "multipart/form-data", None])
def test_another_content_type_is_refused(client, kind):
    headers = {"content-type": kind} if kind else {}
    response = client.post("/v1/embeddings", content=b'{"input":"a"}', headers=headers)
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]


def test_a_charset_in_the_content_type_is_taken(client):
    headers = {"content-type": "application/json; charset=utf-8"}
    assert client.post("/v1/embeddings", content=b'{"input":"a"}', headers=headers).status_code == 200


@pytest.mark.parametrize(
    "field",
    ["model", "user", "priority", "add_special_tokens", "use_activation", "embed_dtype", "truncation_side"],
)
def test_vllms_own_fields_are_named_too(client, field):
    response = client.post("/v1/embeddings", json={"input": "a", field: {"not": "this"}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


def test_other_methods_and_paths(client):
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/v1/embeddings").status_code == 405
    assert client.post("/v1/embeddings/", json={"input": "a"}).status_code == 307
    assert client.post("/v1/nothing", json={"input": "a"}).status_code == 404


def test_a_body_that_arrives_in_pieces_is_read_whole(client):
    text = "a cat and a dog " * 10
    body = json.dumps({"input": [text] * 20, "truncate_prompt_tokens": 9}).encode()

    def slowly():
        for start in range(0, len(body), 200):
            time.sleep(0.01)
            yield body[start : start + 200]

    for _ in range(3):
        response = client.post("/v1/embeddings", content=slowly(), headers=JSON)
        assert response.status_code == 200, response.text
        assert response.json()["usage"]["prompt_tokens"] == 20 * 9


def test_a_chunked_body_over_the_limit_is_413(client):
    for path in ("/v1/embeddings", "/v1/completions"):
        response = client.post(path, content=(b"x" * 2**16 for _ in range(20)), headers=JSON)
        assert response.status_code == 413, path
        assert "1048576" in response.json()["error"]["message"]
