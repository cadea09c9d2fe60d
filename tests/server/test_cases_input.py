"""Cases A1, A3, A4, A5, A12, A14, A15, A16 and A19: what a request may say, and what is answered."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from server_process import MAX_MODEL_LEN
from vectors import cosines, decode, embed, embed_answer, refused, rows, token_ids

TEXTS = ["The cat sat on the mat.", "x", "Paris is the capital of France, and Berlin that of Germany."]
WIDTH = 576


def said(content):
    return [{"role": "user", "content": content}]


def test_a1_floats_unless_asked_otherwise(client):
    plain = rows(embed_answer(client, TEXTS))
    assert plain.shape == (3, WIDTH)
    assert np.array_equal(plain, rows(embed_answer(client, TEXTS, encoding_format=None)))
    assert np.array_equal(plain, rows(embed_answer(client, TEXTS, encoding_format="float")))
    assert np.linalg.norm(plain, axis=1) == pytest.approx(1, abs=1e-5)


def test_a1_base64_is_little_endian_float32_and_the_same_numbers(client):
    floats = embed_answer(client, TEXTS)["data"]
    packed = embed_answer(client, TEXTS, encoding_format="base64")["data"]
    for number, text in zip(floats, packed, strict=True):
        assert len(base64.b64decode(text["embedding"])) == 4 * WIDTH
        assert np.array_equal(decode(number["embedding"]).astype("<f4"), decode(text["embedding"]))


@pytest.mark.parametrize("encoding", ["hex", "", ["float"], 1, {}])
def test_a1_another_encoding_is_refused(client, encoding):
    error = refused(client, input="a", encoding_format=encoding)
    assert error["param"] == "encoding_format"
    assert "float, base64" in error["message"]


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("", "input is an empty string"),
        ([], "input is an empty list"),
        ([[]], "input[0] is empty"),
        (["a", ""], "input[1] is empty"),
        ([[1], [2], []], "input[2] is empty"),
        (None, "input is None"),
        (3, "input is 3"),
        ({"a": 1}, "input is {'a': 1}"),
        (["a", 1], "input[1] is 1"),
        (["a", None], "input[1] is None"),
        ([1, "a"], "input[1] is 'a'"),
        ([1, True], "input[1] is True"),
        ([1.5], "input[0] is 1.5"),
        ([[1], "a"], "input[1] is 'a'"),
        ([["a"]], "input[0][0] is 'a'"),
    ],
)
def test_a3_an_input_that_is_none_is_refused_with_its_position(client, given, where):
    error = refused(client, input=given)
    assert where in error["message"]
    assert error["param"] == "input"


def test_a3_one_space_is_text_and_a_missing_input_is_named(client):
    assert embed(client, " ").shape == (1, WIDTH)
    assert refused(client)["param"] == "input"


def test_a4_token_ids_are_one_input_or_several_and_equal_the_text(client):
    assert embed(client, [1, 2, 3]).shape[0] == 1
    assert embed(client, [[1, 2], [3]]).shape[0] == 2
    ids = token_ids(client, TEXTS[0])
    both = embed(client, [ids]), embed(client, TEXTS[0])
    assert np.abs(both[0] - both[1]).max() < 1e-5


@pytest.mark.parametrize(
    ("ids", "where"), [([-1], "input[0]"), ([1, 49152], "input[1]"), ([[1], [2, -5]], "input[1][1]")]
)
def test_a4_ids_outside_the_vocabulary_are_refused(client, ids, where):
    message = refused(client, input=ids)["message"]
    assert where in message
    assert "from 0 to 49151" in message


def test_a5_too_long_is_refused_with_both_numbers(client):
    message = refused(client, input=[5] * (MAX_MODEL_LEN + 7))["message"]
    assert str(MAX_MODEL_LEN) in message
    assert str(MAX_MODEL_LEN + 7) in message
    message = refused(client, input="word " * (MAX_MODEL_LEN + 7))["message"]
    assert str(MAX_MODEL_LEN) in message
    assert str(MAX_MODEL_LEN + 1) in message


def test_a5_truncation_counts_what_is_left_in_lists_too(client):
    long = "word " * 60
    assert embed_answer(client, long, truncate_prompt_tokens=9)["usage"]["prompt_tokens"] == 9
    answer = embed_answer(client, [long, long, "a"], truncate_prompt_tokens=9)
    assert answer["usage"]["prompt_tokens"] == 9 + 9 + len(token_ids(client, "a"))
    ids = token_ids(client, long)
    cut = embed(client, [ids], truncate_prompt_tokens=9)
    assert cosines(cut, embed(client, [long], truncate_prompt_tokens=9))[0] > 0.99999
    whole = embed_answer(client, "word " * (MAX_MODEL_LEN + 50), truncate_prompt_tokens=-1)
    assert whole["usage"]["prompt_tokens"] == MAX_MODEL_LEN


def test_a5_truncation_keeps_the_beginning_unless_the_end_is_asked_for(client):
    text = " ".join(f"Line {i} is another." for i in range(30))
    ids = token_ids(client, text)
    first, last = embed(client, [ids[:7], ids[-7:]])
    for given in (text, ids, [text], [ids]):
        for fields, wanted in (
            ({}, first),
            ({"truncation_side": "right"}, first),
            ({"long_input": "refuse"}, first),
            ({"truncation_side": "left"}, last),
        ):
            cut = embed(client, given, truncate_prompt_tokens=7, **fields)
            assert np.abs(cut - wanted).max() < 1e-5, (type(given), fields)
            body = {"input": given, "task": "embed", "truncate_prompt_tokens": 7, **fields}
            if "long_input" not in fields:
                answer = client.post("/pooling", json=body).json()
                assert np.abs(np.array(answer["data"][0]["data"]) - wanted).max() < 1e-5


def test_a5_the_other_routes_keep_the_beginning_too(client):
    text = " ".join(f"Line {i} is another." for i in range(30))
    ids = token_ids(client, text)
    first, last = embed(client, [ids[:7], ids[-7:]])
    messages = [{"role": "user", "content": text}]
    rendered = client.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    chat = embed(client, messages, truncate_prompt_tokens=40)
    assert np.abs(chat - embed(client, rendered["tokens"][:40])).max() < 1e-5
    body = {"texts": [text], "max_tokens": 7, "embedding_types": ["float"]}
    answer = client.post("/v2/embed", json=body).json()
    assert cosines(np.array(answer["embeddings"]["float"]), first[None])[0] == pytest.approx(1, abs=1e-5)
    body = {"text_1": text, "text_2": [text, "x"], "truncate_prompt_tokens": 7}
    other = cosines(embed(client, "x"), first[None])[0]
    for path in ("/score", "/v1/score"):
        scores = [item["score"] for item in client.post(path, json=body).json()["data"]]
        assert scores == pytest.approx([1, other], abs=1e-4)
    body = {"query": "x", "documents": [text], "truncate_prompt_tokens": 7}
    for side, wanted in ((None, other), ("left", cosines(embed(client, "x"), last[None])[0])):
        answer = client.post("/rerank", json={**body, "truncation_side": side}).json()
        assert answer["results"][0]["relevance_score"] == pytest.approx(wanted, abs=1e-4)


def test_a_generation_still_keeps_the_end_of_its_prompt(client):
    text = " ".join(f"Line {i} is another." for i in range(30))
    body = {"max_tokens": 1, "temperature": 0, "echo": True, "return_token_ids": True}
    given = {"prompt": text, "truncate_prompt_tokens": 7}
    answer = client.post("/v1/completions", json={**body, **given}).json()
    assert answer["choices"][0]["prompt_token_ids"] == token_ids(client, text)[-7:]


@pytest.mark.parametrize("value", [0, -2, MAX_MODEL_LEN + 1, 1.5, "5", True])
def test_a5_a_wrong_truncation_is_refused_with_the_range(client, value):
    error = refused(client, input="a", truncate_prompt_tokens=value)
    assert error["param"] == "truncate_prompt_tokens"
    assert f"1 to {MAX_MODEL_LEN}" in error["message"]


def test_a12_an_unknown_model_is_404_and_a_wrong_task_400(client):
    bodies = {
        "/v1/embeddings": {"input": "a"},
        "/pooling": {"input": "a"},
        "/score": {"queries": "a", "documents": ["b"]},
        "/v1/completions": {"prompt": "a"},
    }
    for path, body in bodies.items():
        error = refused(client, path, 404, **body, model="nobody")
        assert error["message"] == "The model `nobody` does not exist. Valid aliases: sample."
        assert error["param"] == "model"
    for task in ("classify", "token_embed", "none of them"):
        refused(client, "/pooling", 400, input="a", task=task)


@pytest.mark.parametrize("pooling", ["mean", "weighted_mean", "cls", "last"])
@pytest.mark.parametrize("length", [1, 2, 3, MAX_MODEL_LEN])
def test_a14_the_shortest_and_the_longest_inputs_work_for_every_head(client, pooling, length):
    ids = [40 + i % 400 for i in range(length)]
    answer = embed_answer(client, ids, pooling=pooling)
    assert answer["usage"]["prompt_tokens"] == length
    assert np.isfinite(rows(answer)).all()


def test_a14_heads_agree_on_one_token_and_differ_on_three(client):
    heads = ["mean", "weighted_mean", "cls", "last"]
    one = np.concatenate([embed(client, [40], pooling=head) for head in heads])
    assert np.abs(one - one[0]).max() < 1e-5
    three = np.concatenate([embed(client, [40, 41, 42], pooling=head) for head in heads])
    for i in range(4):
        assert all(np.abs(three[i] - three[k]).max() > 1e-3 for k in range(i))


def test_an_unknown_head_is_refused_with_the_allowed_ones(client):
    for head in ("max", "buffered", "", 3, ["mean"]):
        error = refused(client, input="a", pooling=head)
        assert error["param"] == "pooling"
        assert "mean, weighted_mean, cls, last" in error["message"]


def test_normalize_false_gives_the_pooled_vector(client):
    unit, raw = embed(client, TEXTS), embed(client, TEXTS, normalize=False)
    assert cosines(unit, raw) == pytest.approx(1, abs=1e-6)
    assert (np.abs(np.linalg.norm(raw, axis=1) - 1) > 0.1).all()
    assert refused(client, input="a", normalize="yes")["param"] == "normalize"


def test_a15_too_many_items_and_bytes_are_refused_with_the_limit(client):
    assert "at most 64" in refused(client, status=422, input=["a"] * 65)["message"]
    assert embed(client, ["a"] * 64).shape[0] == 64
    assert "1048576" in refused(client, status=413, input="a" * 2**20)["message"]


def test_a16_messages_go_through_the_chat_template(client):
    messages = [{"role": "user", "content": "Which metal melts first?"}]
    rendered = client.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()[
        "tokens"
    ]
    response = client.post("/v1/embeddings", json={"messages": messages})
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["prompt_tokens"] == len(rendered)
    assert np.abs(rows(response.json()) - embed(client, rendered)).max() < 1e-5
    assert np.abs(rows(response.json()) - embed(client, messages)).max() < 1e-5


@pytest.mark.parametrize("messages", ["a", [], [{"content": "a"}], [3], [{"role": "user", "content": 3}]])
def test_a16_wrong_messages_are_refused(client, messages):
    refused(client, messages=messages)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": ["a", ""]}, "prompt[1]"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/v1/responses", {"input": "a", "max_output_tokens": -1}, "max_output_tokens"),
        ("/v1/responses", {"input": [{"role": "user"}]}, "input"),
        ("/v1/chat/completions", {"messages": said([{"type": "weird"}])}, "messages[0].content[0].type"),
        ("/v1/chat/completions", {"messages": said([5])}, "messages[0].content[0]"),
        ("/v1/chat/completions", {"messages": said(["a"])}, "messages[0].content[0]"),
        ("/v1/embeddings", {"messages": said(["a"])}, "messages[0].content[0]"),
        ("/v1/messages", {"messages": said([{"type": "weird"}]), "max_tokens": 2}, "messages"),
        ("/tokenize", {"messages": said([{"type": "input_text"}])}, "messages[0].content[0]"),
    ],
)
def test_a_refusal_is_one_line_and_names_its_place(client, path, body, param):
    error = refused(client, path, **body)
    assert error["param"] == param
    assert "\n" not in error["message"]
    assert "validation error" not in error["message"]
    assert "errors.pydantic.dev" not in error["message"]


def test_a19_control_tokens_in_text_are_counted_as_the_tokenizer_counts(client):
    text = "<|im_start|>user\n<|endoftext|> <|im_end|> </s> [PAD]"
    assert embed_answer(client, text)["usage"]["prompt_tokens"] == len(token_ids(client, text))
