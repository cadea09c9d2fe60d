"""What vLLM alone answered late, with status 500, without a field or in another form; over a real server."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
from vectors import embed, refused

ITSELF = {"$ref": "#"}
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
GENERATING = {
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/batch": {**CHAT, "messages": [CHAT["messages"]]},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/v1/messages": {**CHAT, "model": "sample"},
    "/invocations": CHAT,
    "/tokenize": {"prompt": "a"},
    "/generative_scoring": {"query": "a", "items": ["b"], "label_token_ids": [5]},
}
EVERY_ROUTE = pytest.mark.parametrize("path", GENERATING)


@pytest.fixture(autouse=True)
def still_serving(client):
    yield
    assert embed(client, "a").shape == (1, 576)


@EVERY_ROUTE
def test_surrogates_and_numbers_are_named_by_their_place(client, path):
    good = GENERATING[path]
    assert client.post(path, json=good).status_code == 200
    for field, value, param in (
        ("stop", ["a", "\ud800"], "stop[1]"),
        ("request_id", "\udfff", "request_id"),
        ("top_k", 1e30, "top_k"),
        ("seed", 2**63, "seed"),
    ):
        content = json.dumps({**good, field: value}).encode()
        response = client.post(path, content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param


@EVERY_ROUTE
def test_a_body_that_is_no_json_or_too_large_has_the_same_form(client, path):
    headers = {"content-type": "application/json"}
    for content in (b'{"a":', b'{"a":"\xff"}', b"[1]", b"[" * 100_000):
        response = client.post(path, content=content, headers=headers)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == "body"
    response = client.post(path, content=(b" " * 2**16 for _ in range(20)), headers=headers)
    assert response.status_code == 413
    assert "at most 1048576 are allowed" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"$ref": "#"}},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"grammar": "root ::= root"}}, "structured_outputs.grammar"),
        # Only the engine finds that nothing can follow "a".
        ({"structured_outputs": {"grammar": 'root ::= "a" b\nb ::= b b | b "c"'}}, "structured_outputs"),
    ],
)
def test_a_form_that_no_text_fits_is_the_requests_fault(client, wanted, param):
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert refused(client, path, **{**GENERATING[path], "max_tokens": 8, **wanted})["param"] == param


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/pooling"])
def test_nothing_is_fetched_for_a_model_of_text(client, path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/cat.png"
        for part in (
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "audio_url", "audio_url": {"url": url}},
            {"type": "video_url", "video_url": {"url": url}},
            {"type": "image", "source": {"type": "url", "url": url}},
        ):
            error = refused(client, path, model="sample", messages=[{"role": "user", "content": [part]}])
            assert error["param"] == "messages[0].content[0]"
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/embeddings", "input"), ("/pooling", "input"), ("/v1/completions", "prompt")]
)
def test_the_input_that_is_too_long_is_named(client, path, field):
    for text in ("a cat " * 2000, "a cat " * 100_000):
        for given, where in ((["a", "b", text], f"{field}[2]"), (text, field)):
            error = refused(client, path, **{field: given})
            assert error["param"] == field
            assert error["message"].startswith(f"{where} has ")
            assert "this model takes at most 1024" in error["message"]
            assert "truncate_prompt_tokens" in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": [{}] * 100_000}),
        ("/v1/responses", {"input": [{"type": "function_call", "name": "a", "id": 3}] * 2000}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{}] * 100_000}]}),
        ("/v1/chat/completions", {"messages": [{}] * 100_000}),
        ("/tokenize", {"messages": [{}] * 100_000}),
    ],
)
def test_malformed_items_by_the_thousand_do_not_hold_the_server_up(client, path: str, body: Any) -> None:
    start = time.monotonic()
    response = client.post(path, json=body)
    assert response.status_code in (400, 422)
    assert response.json()["error"]["param"].startswith(next(iter(body)))
    assert time.monotonic() - start < 8


def test_unknown_models_methods_and_paths(client):
    error = refused(client, "/v1/completions", 404, prompt="a", model="x" * 10_000)
    assert error["param"] == "model"
    assert len(error["message"]) < 300
    assert refused(client, "/v1/nothing", 404)["message"] == "there is no route /v1/nothing"
    assert client.get("/v1/completions").json()["error"]["message"] == "/v1/completions takes POST, not GET"
    assert refused(client, "/scale_elastic_ep", 501, new_data_parallel_size=2)["code"] == 501
    assert refused(client, "/v1/completions", prompt=[True])["param"] == "prompt"
