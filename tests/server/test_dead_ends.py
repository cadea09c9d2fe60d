"""Schemas and grammars that no text fits."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from orthrus.server.dead_ends import check_output_format, structured_field
from orthrus.server.errors import RequestError

A_TO_B = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
DEAD = {
    "itself": {"$ref": "#"},
    "each other": {"$defs": A_TO_B, "$ref": "#/$defs/a"},
    "inside": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": A_TO_B},
    "any of": {"anyOf": [{"$ref": "#"}]},
    "all of": {"allOf": [{"$ref": "#"}, {"type": "string"}]},
    "one of two": {"$defs": {"a": {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#"}]}}, "$ref": "#/$defs/a"},
    "escaped": {"$defs": {"a/b": {"$ref": "#/$defs/a~1b"}}, "$ref": "#/$defs/a~1b"},
}
ALIVE = {
    "a tree": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}},
    "a way out": {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
    "a name for it": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "null"}}, "$ref": "#/$defs/a"},
    "a property of that name": {"properties": {"$ref": {"type": "string"}}},
    "a constant": {"const": {"$ref": "#"}},
    "nowhere": {"$ref": "#/$defs/none"},
    "elsewhere": {"$ref": "https://example.com/schema"},
    "an anchor": {"$defs": {"n": {"$anchor": "node", "type": "object"}}, "$ref": "#node"},
}
ROUTES = {
    "response_format.json_schema.schema": lambda schema: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    },
    "structured_outputs.json": lambda schema: {"structured_outputs": {"json": json.dumps(schema)}},
    "text.format.schema": lambda schema: {"text": {"format": {"type": "json_schema", "schema": schema}}},
    "tools[0].function.parameters": lambda schema: {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "tool_choice": "required",
    },
}


def refusal(body: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_output_format(body)
    return caught.value


@pytest.mark.parametrize("place", ROUTES)
@pytest.mark.parametrize("name", DEAD)
def test_a_schema_without_a_way_out_is_refused_by_its_place(name: str, place: str) -> None:
    error = refusal(ROUTES[place](DEAD[name]))
    assert (error.param, error.status) == (place, 400)
    assert "refers to itself only" in str(error)


@pytest.mark.parametrize("place", ROUTES)
@pytest.mark.parametrize("name", ALIVE)
def test_recursion_with_a_way_out_passes(name: str, place: str) -> None:
    check_output_format(ROUTES[place](ALIVE[name]))


@pytest.mark.parametrize(
    ("grammar", "rule"),
    [
        ("root ::= root", "root"),
        ("root ::= a\na ::= b\nb ::= a", "root"),
        ('root ::= "x" a\na ::= (a | b)+\nb ::= a  # "no text"', "a"),
        ("  root ::=   root root", "root"),
    ],
)
def test_a_rule_without_a_way_out_is_named(grammar: str, rule: str) -> None:
    error = refusal({"structured_outputs": {"grammar": grammar}})
    assert error.param == "structured_outputs.grammar"
    assert f"the rule {rule!r} refers to itself only" in str(error)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= root "a" | "a"',
        "root ::= a\na ::= [a-z]+",
        'root ::= "root ::= root"',
        "root ::= undefined",
        "root ::= ",
        "start: start",
        "not a grammar",
        r'root ::= "\"" a | ["\]] a' + "\na ::= root",
    ],
)
def test_other_grammars_are_left_to_vllm(grammar: str) -> None:
    check_output_format({"structured_outputs": {"grammar": grammar}})


def test_a_schema_that_branches_without_end_is_refused_soon() -> None:
    count = 60
    definitions: dict[str, Any] = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i + 1) % count}"}] * 2} for i in range(count)
    }
    start = time.perf_counter()
    for schema in (
        {"$defs": definitions, "$ref": "#/$defs/d0"},
        {"enum": [1], "properties": {f"p{i}": {"type": "string"} for i in range(300_000)}},
        {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}, "$ref": "#/$defs/d0"},
    ):
        error = refusal({"structured_outputs": {"json": schema}})
        assert error.param == "structured_outputs.json"
        assert "schema" in str(error)
    assert time.perf_counter() - start < 5


def test_tools_count_only_where_one_must_be_called() -> None:
    body: dict[str, Any] = {"tools": [{"function": {"parameters": {"$ref": "#"}}}]}
    for choice in (None, "auto", "none"):
        check_output_format({**body, "tool_choice": choice})
        assert structured_field({**body, "tool_choice": choice}) is None
    assert structured_field({**body, "tool_choice": "required"}) == "tools"
    assert structured_field({"response_format": {"type": "json_object"}}) == "response_format"
    assert structured_field({"prompt": "a"}) is None


def test_a_rule_that_may_be_left_out_is_no_dead_end() -> None:
    check_output_format({"structured_outputs": {"grammar": 'root ::= "x" ws\nws ::= ws?'}})
    check_output_format({"structured_outputs": {"grammar": 'root ::= "x" list\nlist ::= list*'}})
