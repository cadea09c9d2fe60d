"""What is refused in a body for one of vLLM's own routes, before vLLM's models see it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from small_limits import LIMITS

from orthrus.server.errors import RequestError
from orthrus.server.generation import check_generation
from orthrus.server.media import refuse_media
from orthrus.server.responses_input import MOST_ITEMS, MOST_PARTS

IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}
USER = {"role": "user", "content": "a"}
TEXT = {"type": "text", "text": "a"}


def refusal(body: Any, path: str = "/v1/chat/completions") -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_generation(body, LIMITS, path)
    return caught.value


def accepted(body: Any, path: str = "/v1/chat/completions") -> None:
    check_generation(body, LIMITS, path)


def said(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"messages": []}, "messages", "messages is an empty list"),
        ({"messages": [[], []]}, "messages[0]", "messages[0] is an empty list"),
        ({"messages": [USER, {}]}, "messages[1]", "messages[1] is {}; allowed: objects with a 'role'"),
        ({"messages": [USER, "a"]}, "messages[1]", "messages[1] is 'a'"),
        ({"messages": [[USER], [{"role": 1}]]}, "messages[1][0]", "messages[1][0] is {'role': 1}"),
        ({"messages": [{**USER, "content": 3}]}, "messages[0].content", "messages[0].content is 3"),
        ({"prompt": [True]}, "prompt", "prompt[0] is True; token ids are whole numbers from 0 to 99"),
        ({"prompt": [1, 100]}, "prompt", "prompt[1] is 100; token ids"),
        ({"prompt": [1, -1]}, "prompt", "prompt[1] is -1; token ids"),
        ({"prompt": [[1], [2, False]]}, "prompt[1]", "prompt[1][1] is False; token ids"),
        ({"prompt": [[1], []]}, "prompt[1]", "prompt[1] is []"),
        ({"prompt": [1.0]}, "prompt", "prompt[0] is 1.0; token ids"),
        ({"prompt": []}, "prompt", "prompt is an empty list"),
        ({"tokens": [1, 2**40]}, "tokens", "tokens[1] is 1099511627776; token ids"),
        ({"logit_bias": {"1e30": 1}}, "logit_bias", "logit_bias has the key '1e30'"),
        ({"logit_bias": {"9" * 30: 1}}, "logit_bias", "logit_bias has the key '999"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "logit_bias has the key '-1'"),
        ({"messages": None}, "messages", "messages is None; allowed: a list of messages"),
        ({"messages": True}, "messages", "messages is True; allowed: a list of messages"),
        ({"messages": [USER], "tools": 5}, "tools", "tools is 5; allowed: a list of tools"),
        ({"prompt": "a", "structured_outputs": [1]}, "structured_outputs", "structured_outputs is [1]"),
        ({"messages": [USER], "response_format": "json"}, "response_format", "response_format is 'json'"),
    ],
)
def test_each_refusal_names_its_field(body: Any, param: str, message: str) -> None:
    error = refusal(body)
    assert error.param == param
    assert str(error).startswith(message)


@pytest.mark.parametrize(
    ("parts", "place", "message"),
    [
        ([{"type": "weird"}], "[0].type", " is 'weird'; allowed: 'text', 'refusal',"),
        ([TEXT, {"type": ["text"]}], "[1].type", " is ['text']; allowed: 'text'"),
        ([5], "[0]", " is 5; allowed: 'text'"),
        ([TEXT, None], "[1]", " is None; allowed: 'text'"),
        (["a"], "[0]", " is 'a'; allowed: 'text'"),
        ([{"type": "input_text", "text": "a"}], "[0]", " is {'type': 'input_text'"),
        ([{"type": "text"}], "[0]", " is {'type': 'text'}; allowed: 'text'"),
        ([TEXT, {"text": "a"}], "[1].type", " is missing; allowed: 'text'"),
        ([{"type": "text", "text": 5}], "[0].text", " is 5; allowed: a string"),
        ([{"type": "thinking", "thinking": []}], "[0].thinking", " is []; allowed: a string"),
    ],
)
def test_a_part_that_vllm_would_find_late_is_named(parts: Any, place: str, message: str) -> None:
    error = refusal(said(parts))
    assert error.param == f"messages[1].content{place}"
    assert str(error).startswith(error.param + message)
    assert refusal({"messages": [said(parts)["messages"]]}).param == f"messages[0][1].content{place}"


def test_the_parts_that_vllm_takes_pass() -> None:
    for parts in (
        [TEXT, "a"],
        ["a", TEXT, {"type": "text"}],
        [{"type": "thinking", "thinking": "a"}],
        [{"type": "refusal", "refusal": "a"}, {"type": "output_text", "text": "a"}],
        [{"type": "tool_reference", "name": "a"}],
        [{"prompt_embeds": "x", "uuid": "u"}],
        [],
    ):
        accepted(said(parts))
    accepted({"messages": [{"role": "tool", "tool_call_id": "c", "content": ["a"]}]})
    accepted(said([{"type": "tool_use", "id": "t", "name": "f", "input": {}}]), "/v1/messages")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "max_output_tokens": -1}, "max_output_tokens"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_a_number_that_is_too_small_is_named_by_its_own_field(body: Any, field: str) -> None:
    error = refusal(body, "/v1/responses")
    assert error.param == field
    assert str(error).startswith(f"{field} is {body[field]}; allowed: 1 or more")
    accepted({**body, field: 1}, "/v1/responses")


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a"},
        {"prompt": ["a", "b"]},
        {"prompt": [0, 99]},
        {"prompt": [[0], [99]]},
        {"prompt": None, "messages": None},
        {"prompt": [], "prompt_embeds": "x"},
        {"logit_bias": {"5": -1.5}},
        {"tokens": []},
    ],
)
def test_what_vllm_takes_passes(body: Any) -> None:
    accepted(body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (said([TEXT, IMAGE]), "messages[1].content[1]"),
        (said([{"type": "input_audio", "input_audio": {"data": ""}}]), "messages[1].content[0]"),
        (said([{"type": "video_url", "video_url": {"url": "x"}}]), "messages[1].content[0]"),
        (said([{"image_url": "http://x"}]), "messages[1].content[0]"),
        (said([{"type": "text", "text": "a", "uuid": "u", "image_url": "x"}]), "messages[1].content[0]"),
        (said([{"type": "image", "source": {"url": "x"}}]), "messages[1].content[0]"),
        (
            said([{"type": "tool_result", "content": [TEXT, {"type": "image"}]}]),
            "messages[1].content[0].content[1]",
        ),
        ({"messages": [[{"role": "user", "content": [IMAGE]}]]}, "messages[0][0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "x", "output": [{"type": "input_image"}]}]}, "input[0].output[0]"),
        ({"queries": {"content": [IMAGE]}}, "queries.content[0]"),
        ({"documents": [{"content": [IMAGE]}]}, "documents[0].content[0]"),
        ({"images": ["data:image/png;base64,"]}, "images"),
    ],
)
def test_a_model_of_text_gets_no_media(body: Any, param: str) -> None:
    error = refusal(body)
    assert error.param == param
    assert "this model takes text only" in str(error)


@pytest.mark.parametrize(
    "body",
    [
        said([TEXT]),
        said([{"type": "tool_use", "input": {"image_url": "x", "content": "y"}}]),
        {"messages": [{"role": "user", "content": "a"}], "documents": [{"image_url": "x"}]},
        {"input": "image_url"},
        {"input": [1, 2]},
    ],
)
def test_text_and_the_callers_own_objects_are_no_media(body: Any) -> None:
    refuse_media(body)


def test_a_model_that_takes_images_gets_them() -> None:
    from dataclasses import replace

    check_generation(said([IMAGE]), replace(LIMITS, text_only=False), "/v1/chat/completions")


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([USER, 3], "input[1]"),
        ([USER, {}], "input[1]"),
        ([USER, {"type": 3}], "input[1]"),
        ([USER, {"role": "weird", "content": "a"}], "input[1].role"),
        ([{"type": "message", "role": ["user"]}], "input[0].role"),
        ([{"role": "user", "content": [{}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "nothing"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_text", "text": 3}]}], "input[0].content[0].text"),
        ([{"type": "function_call_output", "output": ["a"]}], "input[0].output[0]"),
    ],
)
def test_the_first_malformed_item_is_named(items: Any, param: str) -> None:
    error = refusal({"input": items}, "/v1/responses")
    assert (error.param, error.status) == (param, 400)
    assert str(error).startswith(param)


def test_items_and_parts_are_bounded() -> None:
    part = {"type": "input_text", "text": "a"}
    accepted({"input": [USER] * MOST_ITEMS}, "/v1/responses")
    accepted({"input": [{"role": "user", "content": [part] * MOST_PARTS}]}, "/v1/responses")
    for items, param in (
        ([USER] * (MOST_ITEMS + 1), "input"),
        ([{"role": "user", "content": [part] * (MOST_PARTS + 1)}], "input[0].content"),
    ):
        error = refusal({"input": items}, "/v1/responses")
        assert (error.param, error.status) == (param, 422)


def test_a_conversation_with_tools_passes() -> None:
    accepted(
        {
            "input": [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
                USER,
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
                {"type": "function_call_output", "call_id": "c", "output": "1"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
                {"type": "web_search_call", "id": "w", "status": "completed"},
            ]
        },
        "/v1/responses",
    )


def test_malformed_items_by_the_hundred_thousand_end_soon() -> None:
    start = time.perf_counter()
    for items in ([{}] * 300_000, [{"role": "user", "content": [{}] * 300_000}], [USER] * 300_000):
        refusal({"input": items}, "/v1/responses")
    assert time.perf_counter() - start < 3


def test_an_earlier_answer_begins_with_a_text() -> None:
    def answer(*parts: Any) -> dict[str, Any]:
        item = {"type": "message", "role": "assistant", "id": "m", "status": "completed"}
        return {"input": [{**item, "content": list(parts)}]}

    text, no = {"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}
    accepted(answer(text), "/v1/responses")
    accepted(answer(text, no), "/v1/responses")
    assert refusal(answer(), "/v1/responses").param == "input[0].content"
    assert refusal(answer(no), "/v1/responses").param == "input[0].content[0]"


@pytest.mark.parametrize(
    ("path", "field", "item"),
    [("/generative_scoring", "items", "a"), ("/v1/chat/completions/batch", "messages", [USER])],
)
def test_lists_of_whole_requests_are_bounded(path: str, field: str, item: Any) -> None:
    accepted({field: [item] * LIMITS.max_inputs}, path)
    error = refusal({field: [item] * (LIMITS.max_inputs + 1)}, path)
    assert (error.param, error.status) == (field, 422)


def test_null_is_as_good_as_absent() -> None:
    accepted({"messages": [USER], "tools": None, "response_format": None, "structured_outputs": None})
    accepted({"prompt": "a", "messages": None}, "/tokenize")
