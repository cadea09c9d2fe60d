"""What vLLM's request models find wrong with a body, in one sentence.

Pydantic gives a finding for each member of a union, with the members' names in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orthrus.server.errors import short

MOST = 1000  # a body of 3 MB can have a million
SHOULD_BE = "Input should be "
TAGS = ("type", "role")  # the fields by whose value a member of a union is told from the others
# FastAPI's first part of a finding's place.
SOURCES = ("body", "query", "path", "header")

Placed = tuple[list[str | int], Any]  # a finding, after its place in the body


def explain(errors: Sequence[Any], body: object) -> tuple[str, str]:
    """The sentence, and the field of the request that it is about ("body" where it is none).

    Of several findings the deepest ones about the first field that the request has count: they come from the
    member of the union that fits best. Only the first MOST are looked at.
    """
    findings = [error for error in errors[:MOST] if isinstance(error, dict)]
    if not findings:
        return "; ".join(str(error) for error in errors) or "the request is not valid", "body"
    for finding in findings:
        if finding["type"] == "json_invalid":
            reason = finding.get("ctx", {}).get("error", finding["msg"])
            return f"the request body is not JSON: {reason} at character {finding['loc'][-1]}", "body"
    first = findings[0]["loc"]
    if len(first) > 1 and first[0] in SOURCES[1:]:  # not about the body at all
        return f"{first[1]} is {short(findings[0].get('input'))}; {_expected(findings[:1])}", str(first[1])
    placed = [(path, finding) for finding in findings if (path := _path(finding["loc"], body))]
    if not placed:
        return _about_the_whole(findings[0], body)
    field = placed[0][0][0]
    about = _of_fitting_members([(path, finding) for path, finding in placed if path[0] == field])
    deepest = max((path for path, _ in about), key=len)
    nearest = [finding for path, finding in about if path == deepest]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in deepest)[1:]
    if nearest[0]["type"] == "missing":
        return f"{where}.{_missed(nearest)} is required", str(field)
    return f"{where} is {short(nearest[0].get('input'))}; {_expected(nearest)}", str(field)


def _path(loc: tuple[Any, ...], body: object) -> list[str | int]:
    """The parts of a finding's place that are keys and indices of the body; others name union members."""
    path: list[str | int] = []
    value = body
    for part in loc:
        is_key = isinstance(value, dict) and isinstance(part, str) and part in value
        # FastAPI's own "body" comes before any index.
        is_index = bool(path) and isinstance(value, list) and isinstance(part, int) and part < len(value)
        if not (is_key or is_index):
            continue
        value = value[part]  # type: ignore[index]
        path.append(part)
    return path


def _of_fitting_members(about: list[Placed]) -> list[Placed]:
    """The findings about the deepest place without those of members that another type or role is of.

    All of them where that leaves none: the type or the role itself is at fault then.
    """
    deepest = max((path for path, _ in about), key=len)
    if deepest[-1] not in TAGS:
        return about
    object_at = deepest[:-1]
    inside = [(path, finding) for path, finding in about if path[: len(object_at)] == object_at]
    others = {finding["loc"][:-1] for path, finding in inside if _is_of_another(path, finding, object_at)}
    fitting = [
        (path, finding)
        for path, finding in inside
        if not any(finding["loc"][:length] in others for length in range(1, len(finding["loc"]) + 1))
    ]
    return fitting or about


def _is_of_another(path: list[str | int], finding: Any, object_at: list[str | int]) -> bool:
    """Whether a member's finding says that its type or role is another, or that a type is missing."""
    if finding["type"] == "missing":
        return path == object_at and finding["loc"][-1] == "type"
    return finding["type"] == "literal_error" and len(path) == len(object_at) + 1 and path[-1] in TAGS


def _missed(findings: list[Any]) -> str:
    """The first field that the member with the fewest missing ones lacks."""
    by_member: dict[tuple[Any, ...], list[str]] = {}
    for finding in findings:
        if finding["type"] == "missing":
            by_member.setdefault(finding["loc"][:-1], []).append(str(finding["loc"][-1]))
    return min(by_member.values(), key=len)[0]


def _expected(findings: list[Any]) -> str:
    messages = list(dict.fromkeys(_message(finding) for finding in findings))
    wanted = [message.removeprefix(SHOULD_BE) for message in messages if message.startswith(SHOULD_BE)]
    return f"allowed: {' or '.join(wanted)}" if wanted else messages[0]


def _about_the_whole(finding: Any, body: object) -> tuple[str, str]:
    if not isinstance(body, dict):
        return "the request body must be a JSON object", "body"
    if finding["type"] != "missing":
        return _message(finding), "body"
    # The first part of the place says where the value comes from; a field may be called `query` as well.
    names = [part for part in finding["loc"][1:] if isinstance(part, str)]
    if not names:
        return _message(finding), "body"
    return f"'{names[-1]}' is required", names[-1]


def _message(finding: Any) -> str:
    message: str = finding["msg"]
    return message.removeprefix("Value error, ")
