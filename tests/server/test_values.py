"""Strings and numbers that nothing can take, anywhere in a body."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthrus.server.errors import RequestError
from orthrus.server.values import check_values


def refusal(body: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_values(body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stop": ["\ud800"]}, "stop[0]"),
        ({"stop": "a\udfff"}, "stop"),
        ({"bad_words": ["a", "é", "\udc00"]}, "bad_words[2]"),
        ({"request_id": "\ud800"}, "request_id"),
        ({"messages": [{"content": "a"}, {"role": "user", "content": "b\ud800"}]}, "messages[1].content"),
        ({"messages": [{"content": [{"type": "text", "text": "\ud800"}]}]}, "messages[0].content[0].text"),
        ({"tools": [{"function": {"name": "\udbff"}}]}, "tools[0].function.name"),
        ({"metadata": {"\ud800": 1}}, "metadata"),
        ({"\ud800": 1}, "body"),
        ({"input": [["a"], ["\ud800"]]}, "input[1][0]"),
        ({"vllm_xargs": {"a": {"b": [{"c": "\ud800"}]}}}, "vllm_xargs.a.b[0].c"),
    ],
)
def test_a_lone_surrogate_is_named_by_its_place(body: Any, param: str) -> None:
    error = refusal(body)
    assert (error.param, error.status) == (param, 400)
    assert "has a lone surrogate ('\\ud" in str(error)
    str(error).encode()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"top_k": 1e30}, "top_k"),
        ({"top_k": -1e30}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"n": 10**40}, "n"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 1e19}, "temperature"),
        ({"prompt": [1, 2**63]}, "prompt[1]"),
        ({"prompt": [[1], [2, -(2**63) - 1]]}, "prompt[1][1]"),
        ({"logit_bias": {"1": 1e300}}, "logit_bias.1"),
        ({"stop_token_ids": [1e30]}, "stop_token_ids[0]"),
        ({"vllm_xargs": {"a": 2**64}}, "vllm_xargs.a"),
        ({"input": [2**70]}, "input[0]"),
        ({"messages": [{"content": float("nan")}]}, "messages[0].content"),
        ({"response_format": {"schema": {"maximum": float("inf")}}}, "response_format.schema.maximum"),
    ],
)
def test_a_number_out_of_range_is_named_by_its_place(body: Any, param: str) -> None:
    error = refusal(body)
    assert (error.param, error.status) == (param, 400)
    assert str(error).startswith(f"{param} is ")
    assert len(str(error)) < 200


@pytest.mark.parametrize(
    "body",
    [
        {"seed": 2**63 - 1, "n": -(2**63), "temperature": 0.5, "stop": ["é", "汉字", "\U0001f600"]},
        {"response_format": {"json_schema": {"schema": {"maximum": 10**30, "multipleOf": 1e30}}}},
        {"messages": [{"role": "user", "content": "a", "tool": {"input": {"factorial": 10**60}}}]},
        {"input": [{"type": "function_call", "x": 1e30}]},
        {"stop": [], "prompt": [], "logit_bias": {}, "user": None, "stream": True},
    ],
)
def test_what_is_in_range_or_the_callers_own_passes(body: Any) -> None:
    before = json.dumps(body)
    check_values(body)
    assert json.dumps(body) == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["stop", "input", "messages", "a", "é"]), JSON))
def test_a_body_passes_only_if_it_can_be_encoded_and_is_json(body: Any) -> None:
    try:
        check_values(body)
    except RequestError as error:
        str(error).encode()
        error.param.encode()
        return
    json.dumps(body, allow_nan=False, ensure_ascii=False).encode()


def test_depth_and_width_end_in_a_short_answer() -> None:
    deep: Any = "\ud800"
    for _ in range(900):
        deep = {"key" * 30: [deep]}
    error = refusal({"deep": deep})
    assert error.param.startswith("deep.keykey")
    assert len(error.param) <= 200
    assert len(str(error)) < 600


@pytest.mark.parametrize(
    "body", [{"prompt": "a" * 2**20}, {"prompt": [5] * 2**18}, {"input": ["some words"] * 2**16}]
)
def test_plain_bodies_of_a_mebibyte_cost_little_beside_their_parsing(body: Any) -> None:
    content = json.dumps(body)

    def best(work: Any) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(lambda: check_values(body)) < 1.5 * best(lambda: json.loads(content))
