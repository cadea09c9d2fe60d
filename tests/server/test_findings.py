"""Pydantic's findings about a body, told in one sentence."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.testclient import TestClient
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from orthrus.server.findings import explain


class Message(BaseModel):
    role: str
    content: str | list[int]


class Texts(BaseModel):
    text_1: str | list[str]
    text_2: str | list[str]


class Chat(BaseModel):
    messages: list[Message]
    top_n: int = Field(default=0, ge=0)
    kind: str | None = None


class Said(BaseModel):
    role: Literal["user"]
    content: str
    type: Literal["message"] = "message"


class Call(BaseModel):
    type: Literal["call"]
    name: str
    id: int | None = None


class Output(BaseModel):
    type: Literal["output"]
    id: int
    result: str


class Items(BaseModel):
    items: str | list[Said | Call | Output]


@pytest.fixture
def said() -> Any:
    """The sentence and the field of a body that FastAPI refuses."""
    app, heard = FastAPI(), []

    @app.exception_handler(RequestValidationError)
    async def hear(_request: Any, error: RequestValidationError) -> Any:
        heard.append(explain(error.errors(), error.body))
        raise error

    @app.post("/")
    async def route(request: Texts | Chat) -> None: ...

    def send(**kwargs: Any) -> tuple[str, str]:
        with pytest.raises(RequestValidationError):
            TestClient(app).post("/", **kwargs)
        return heard.pop()

    return send


@pytest.mark.parametrize(
    ("body", "message", "field"),
    [
        ({"text_1": 3}, "text_1 is 3; allowed: a valid string or a valid list", "text_1"),
        ({"text_1": "a", "text_2": ["b", 4]}, "text_2[1] is 4; allowed: a valid string", "text_2"),
        ({"text_1": "a"}, "'text_2' is required", "text_2"),
        ({"messages": 1}, "messages is 1; allowed: a valid list", "messages"),
        ({"messages": [{"role": "u"}]}, "messages[0].content is required", "messages"),
        (
            {"messages": [{"role": "u", "content": [1, "x"]}]},
            "messages[0].content[1] is 'x'; allowed: a valid integer, unable to parse string as an integer",
            "messages",
        ),
        ({"messages": [], "top_n": -1}, "top_n is -1; allowed: greater than or equal to 0", "top_n"),
        (
            {"messages": [], "top_n": 1.5},
            "top_n is 1.5; allowed: a valid integer, got a number with a",
            "top_n",
        ),
        ([], "the request body must be a JSON object", "body"),
        (None, "the request body must be a JSON object", "body"),
    ],
)
def test_one_sentence_names_the_place_and_what_is_allowed(
    said: Any, body: Any, message: str, field: str
) -> None:
    sentence, param = said(json=body)
    assert sentence.startswith(message)
    assert "\n" not in sentence
    assert param == field


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"type": "call"}, "items[0].name is required"),
        ({"type": "output", "id": 1}, "items[0].result is required"),
        ({"type": "output", "id": "x", "result": "a"}, "items[0].id is 'x'; allowed: a valid integer"),
        ({"type": "other"}, "items[0].type is 'other'; allowed: 'message' or 'call' or 'output'"),
        ({"role": "user"}, "items[0].content is required"),
        ({"role": "nobody", "content": "a"}, "items[0].role is 'nobody'; allowed: 'user'"),
    ],
)
def test_the_member_whose_type_or_role_is_given_says_what_is_missing(item: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Items).validate_python({"items": [item]})
    sentence, field = explain(caught.value.errors(), {"items": [item]})
    assert sentence.startswith(message)
    assert field == "items"


def test_long_values_are_cut_and_broken_json_is_named(said: Any) -> None:
    sentence, _ = said(json={"text_1": {"a": "b" * 10_000}, "text_2": "c"})
    assert len(sentence) < 200
    content = b'{"text_1": }'
    sentence, param = said(content=content, headers={"content-type": "application/json"})
    assert sentence == "the request body is not JSON: Expecting value at character 11"
    assert param == "body"


def test_a_finding_that_is_a_plain_text_is_passed_on() -> None:
    assert explain(["only this"], None) == ("only this", "body")
    assert explain([], None)[1] == "body"


def test_a_missing_field_may_have_the_name_of_a_place() -> None:
    finding = {"type": "missing", "loc": ("body", "query"), "msg": "Field required"}
    assert explain([finding], {}) == ("'query' is required", "query")
