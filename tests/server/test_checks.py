"""The checks of an embeddings request, over arbitrary JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_limits import LIMITS

from orthrus.server.checks import EmbeddingLimits, RequestError, check_embedding, parse_body

FIELDS = (
    "model",
    "input",
    "messages",
    "encoding_format",
    "pooling",
    "normalize",
    "dimensions",
    "truncate_prompt_tokens",
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
IDS = st.lists(st.integers(0, 99), min_size=1, max_size=16)
GOOD_INPUTS = TEXT | IDS | st.lists(TEXT, min_size=1, max_size=4) | st.lists(IDS, min_size=1, max_size=4)


def accepted(body: Any) -> dict[str, Any]:
    return check_embedding(body, LIMITS)


def outcome(check: Callable[[Any], Any], value: Any) -> tuple[Any, RequestError | None]:
    try:
        return check(value), None
    except RequestError as error:
        return None, error


@given(VALUES | BODIES)
@settings(max_examples=200, deadline=None)
def test_any_json_is_accepted_or_refused_with_a_field_and_a_short_message(body):
    checked, error = outcome(accepted, body)
    if error is not None:
        assert error.param.startswith((*FIELDS, "body", *(body if isinstance(body, dict) else ())))
        assert error.status in (400, 422)
        assert 0 < len(str(error)) < 400
        str(error).encode()
        return
    json.dumps(checked, allow_nan=True)
    assert checked.get("encoding_format") in (None, "float", "base64", "bytes", "bytes_only")
    assert checked.get("pooling") in (None, "mean", "last")
    assert 1 <= checked.get("dimensions", 1) < 8
    assert "normalize" not in checked


@given(GOOD_INPUTS)
def test_every_input_of_a_right_form_is_accepted_unchanged(given_input):
    body = {"input": given_input, "model": "m"}
    assert accepted(body) == body
    assert body == {"input": given_input, "model": "m"}


@given(GOOD_INPUTS.filter(lambda value: isinstance(value, list)), st.data())
def test_one_bad_item_is_found_at_its_place(given_input, data):
    place = data.draw(st.integers(0, len(given_input) - 1))
    bad = -1 if isinstance(given_input[0], int) else ("" if isinstance(given_input[0], str) else [])
    spoilt = [*given_input[:place], bad, *given_input[place + 1 :]]
    with pytest.raises(RequestError) as caught:
        accepted({"input": spoilt})
    assert f"input[{place}]" in str(caught.value)


@given(st.integers())
def test_dimensions_and_truncation_ranges(value):
    for field, right in (
        ("dimensions", 1 <= value <= 8),
        ("truncate_prompt_tokens", value == -1 or 1 <= value <= 16),
    ):
        body = {"input": "a", field: value}
        if right:
            assert accepted(body).get(field, 8) == value
        else:
            with pytest.raises(RequestError) as caught:
                accepted(body)
            assert caught.value.param == field


def test_the_native_size_is_accepted_where_no_smaller_one_is():
    fixed = EmbeddingLimits(16, 100, 8, 4, ("mean",), smaller_dimensions=False)
    assert check_embedding({"input": "a", "dimensions": 8}, fixed) == {"input": "a"}
    with pytest.raises(RequestError, match="8 dimensions only"):
        check_embedding({"input": "a", "dimensions": 4}, fixed)


@pytest.mark.parametrize(("ids", "numbers"), [([5] * 17, ("17", "16")), ([[5], [5] * 18], ("18", "16"))])
def test_too_many_ids_name_both_numbers_unless_truncated(ids, numbers):
    with pytest.raises(RequestError) as caught:
        accepted({"input": ids})
    assert all(number in str(caught.value) for number in numbers)
    assert accepted({"input": ids, "truncate_prompt_tokens": 4})["truncate_prompt_tokens"] == 4


def test_too_many_inputs_are_422_but_many_token_ids_are_one_input():
    with pytest.raises(RequestError, match="at most 4") as caught:
        accepted({"input": ["a"] * 5})
    assert caught.value.status == 422
    assert accepted({"input": [1, 2, 3, 4, 5]})


def test_base64_is_little_endian_unless_the_request_says_otherwise():
    assert accepted({"input": "a", "encoding_format": "base64"})["endianness"] == "little"
    asked = {"input": "a", "encoding_format": "base64", "endianness": "big"}
    assert accepted(asked)["endianness"] == "big"


@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_a_request_error(content):
    _, error = outcome(parse_body, content)
    assert error is None or error.param == "body"


def test_nesting_beyond_the_parsers_depth_is_a_request_error():
    with pytest.raises(RequestError, match="nested too deep"):
        parse_body(b"[" * 200_000 + b"]" * 200_000)


BAD_MESSAGES = [
    ({}, "", "{}; allowed: objects with a 'role'"),
    ({"role": 1, "content": "a"}, "", "{'role': 1, 'content': 'a'}; allowed: objects with a 'role'"),
    ({"role": "user", "content": 2}, ".content", "2; allowed: a string or a list of parts"),
]


@pytest.mark.parametrize(
    ("field", "wrong", "place", "said"),
    [
        ("messages", 0, "", "0; allowed: objects with a 'role'"),  # an input of numbers is no chat
        *(("messages", *bad) for bad in BAD_MESSAGES),
        *(("input", *bad) for bad in BAD_MESSAGES),
    ],
)
@pytest.mark.parametrize("is_several", [False, True])
def test_the_first_bad_message_is_named_before_a_model_looks_at_all(field, wrong, place, said, is_several):
    chat = [{"role": "user", "content": "a"}, wrong, wrong]
    _, error = outcome(accepted, {field: [chat, chat] if is_several else chat})
    where = f"{field}[0][1]{place}" if is_several else f"{field}[1]{place}"
    assert (str(error), error.param) == (f"{where} is {said}", where)
