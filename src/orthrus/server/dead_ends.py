"""Schemas and grammars that refer to themselves only: no text fits them, and the engine fails the request.

vLLM's checks (v1/structured_output/backend_xgrammar.py) take them; the first token for which nothing is
allowed then ends the generation with status 500. What these checks cannot see, handlers.py answers.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from orthrus.server.errors import RequestError, short

NESTING = 64  # of `$ref`, `allOf`, `anyOf` and `oneOf` in each other
MOST_STEPS = 200_000  # about 0.1 s
FORMATS = ("response_format", "structured_outputs", "text", "output_config")
# What a schema compares with: no schemas lie in these.
VALUES = frozenset({"const", "enum", "default", "examples"})
BRANCHES = ("anyOf", "oneOf")
RULE = re.compile(r"^[ \t]*([A-Za-z_][\w-]*)[ \t]*::=", re.MULTILINE)
# Of a rule's body: a comment, a text, a class of characters, or another rule's name.
OPTIONAL = re.compile(r"[?*{]")  # what it follows may be left out
PIECE = re.compile(r'#[^\n]*|"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\\n]|\\.)*\]|[A-Za-z_][\w-]*')


def structured_field(body: dict[str, Any]) -> str | None:
    """The field with which a request asks for a form of output, or None."""
    fields = (*FORMATS, "tools") if _calls_a_tool(body) else FORMATS
    return next((field for field in fields if body.get(field)), None)


def check_output_format(body: dict[str, Any]) -> None:
    """Refuse a JSON schema or an EBNF grammar that refers to itself only. RequestError names its place."""
    for field in FORMATS:
        wanted = body.get(field)
        if not isinstance(wanted, dict):
            continue
        for path, schema in _schemas(field, wanted):
            _Schema(schema, path).check()
        grammar = wanted.get("grammar")
        if isinstance(grammar, str):
            check_grammar(grammar, f"{field}.grammar")
    tools = body.get("tools") if _calls_a_tool(body) else None
    for i, tool in enumerate(tools if isinstance(tools, list) else []):
        if isinstance(tool, dict):
            for path, schema in _tool_schemas(f"tools[{i}]", tool):
                _Schema(schema, path).check()


def _calls_a_tool(body: dict[str, Any]) -> bool:
    """Whether a tool's schema becomes the form of the output: the model may not answer with a text."""
    return body.get("tool_choice") not in (None, "auto", "none")


def _schemas(field: str, wanted: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    found = [(f"{field}.json", wanted.get("json")), (f"{field}.schema", wanted.get("schema"))]
    for name in ("json_schema", "format"):
        inner = wanted.get(name)
        if isinstance(inner, dict):
            found.append((f"{field}.{name}.schema", inner.get("schema")))
    read = ((path, _parsed(schema)) for path, schema in found)
    return [(path, schema) for path, schema in read if isinstance(schema, dict)]


def _parsed(schema: Any) -> Any:
    """A schema that is given as text, read; None where it is no JSON, which vLLM says."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        return None


def _tool_schemas(where: str, tool: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    function = tool.get("function")
    found = [(f"{where}.{name}", tool.get(name)) for name in ("parameters", "input_schema")]
    if isinstance(function, dict):
        found.append((f"{where}.function.parameters", function.get("parameters")))
    return [(path, schema) for path, schema in found if isinstance(schema, dict)]


class _Schema:
    """A JSON schema whose references are followed in at most `MOST_STEPS` steps; its place in the request."""

    def __init__(self, schema: dict[str, Any], where: str) -> None:
        self._schema = schema
        self._where = where
        self._targets: dict[str, Any] = {}
        self._steps = 0

    def check(self) -> None:
        """Refuse a reference that leads to itself only, and a schema that takes too long to follow."""
        pending: list[Any] = [self._schema]
        while pending:
            node = pending.pop()
            self._step()
            if isinstance(node, dict):
                if "$ref" in node and not self._has_value(node, ()):
                    self._refuse(f"{short(node['$ref'])} refers to itself only, so that no value fits it")
                pending.extend(value for key, value in node.items() if key not in VALUES)
            elif isinstance(node, list):
                pending.extend(node)

    def _has_value(self, node: Any, above: tuple[str, ...]) -> bool:
        """Whether `node`, reached by the references `above`, says more than one of these does."""
        self._step()
        if not isinstance(node, dict):
            return True
        if len(above) > NESTING:
            self._refuse(f"it has more than {NESTING} references in a row; give a simpler schema")
        reference = node.get("$ref")
        if isinstance(reference, str):
            return reference not in above and self._has_value(self._resolve(reference), (*above, reference))
        inside = (*above, "")
        for name in BRANCHES:
            branches = node.get(name)
            if isinstance(branches, list) and branches:
                return any(self._has_value(branch, inside) for branch in branches)
        parts = node.get("allOf")
        return not isinstance(parts, list) or all(self._has_value(part, inside) for part in parts)

    def _resolve(self, reference: str) -> Any:
        """The node that `#/...` names; None where there is none (vLLM says so), or it lies elsewhere."""
        if reference not in self._targets:
            # `#name` is an anchor, which may be anywhere.
            is_path = reference == "#" or reference.startswith("#/")
            node: Any = self._schema if is_path else None
            for part in reference[1:].split("/")[1:] if is_path else ():
                node = (
                    node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
                )
            self._targets[reference] = node
        return self._targets[reference]

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            self._refuse("it has too many parts and references; give a smaller schema")

    def _refuse(self, reason: str) -> NoReturn:
        raise RequestError(f"{self._where}: {reason}", self._where)


def check_grammar(grammar: str, where: str) -> None:
    """Refuse a rule of an EBNF grammar that comes to no text and no character by any way. RequestError."""
    heads = list(RULE.finditer(grammar))
    if not heads:  # another form, as Lark's
        return
    named: dict[str, set[str]] = {}
    live: list[str] = []
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        body = grammar[head.end() : following.start() if following else len(grammar)]
        pieces = [piece for piece in PIECE.findall(body) if piece[0] != "#"]
        named[head[1]] = set(pieces)
        if not pieces or any(piece[0] in "\"'[" for piece in pieces) or OPTIONAL.search(PIECE.sub("", body)):
            live.append(head[1])
    callers: dict[str, list[str]] = {}
    for name, pieces_of in named.items():
        for piece in pieces_of:
            callers.setdefault(piece, []).append(name)
            if piece not in named and piece[0] not in '"[':  # vLLM says that it is not defined
                live.append(name)
    reached: set[str] = set()
    while live:
        name = live.pop()
        if name not in reached:
            reached.add(name)
            live.extend(callers.get(name, ()))
    for name in named:
        if name not in reached:
            raise RequestError(
                f"{where}: the rule {short(name)} refers to itself only, so that no text fits it", where
            )
