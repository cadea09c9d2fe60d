"""The items of a /v1/responses request: bounded, since each may be one of some sixty types for vLLM."""

from __future__ import annotations

from typing import Any

from orthrus.server.errors import RequestError, short

MOST_ITEMS = 1024
MOST_PARTS = 1024  # of one item
ROLES = ("user", "assistant", "system", "developer")
# The string that a part of each type must have. Others have none, or are refused as no text.
PARTS: dict[str, str | None] = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
    "input_image": None,
    "input_file": None,
    "input_audio": None,
}


def check_responses_input(given: object) -> None:
    """Check the field `input` of /v1/responses. Raises RequestError for the first bad item, by its place."""
    if not isinstance(given, list):
        return
    _check_count(given, "input", MOST_ITEMS)
    for i, item in enumerate(given):
        where = f"input[{i}]"
        if not isinstance(item, dict):
            raise RequestError(f"{where} is {short(item)}; allowed: objects with a 'type' or a 'role'", where)
        kind = item.get("type", "message" if "role" in item else None)
        if not isinstance(kind, str):
            raise RequestError(f"{where} has neither a 'type' nor a 'role'", where)
        if kind == "message" and item.get("role", ROLES[0]) not in ROLES:
            allowed = ", ".join(map(repr, ROLES))
            raise RequestError(f"{where}.role is {short(item['role'])}; allowed: {allowed}", f"{where}.role")
        if kind == "message" and item.get("role") == "assistant":
            _check_answer(item.get("content"), f"{where}.content")
        for field in ("content", "output"):
            if isinstance(item.get(field), list):
                _check_parts(item[field], f"{where}.{field}", texts=kind == "message")


def _check_parts(parts: list[Any], where: str, *, texts: bool) -> None:
    """`texts`: these are a message's parts, whose types are known."""
    _check_count(parts, where, MOST_PARTS)
    for i, part in enumerate(parts):
        place = f"{where}[{i}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or (texts and kind not in PARTS):
            allowed = f"objects of type {', '.join(PARTS)}" if texts else "objects with a 'type'"
            raise RequestError(f"{place} is {short(part)}; allowed: {allowed}", place)
        field = PARTS.get(kind)
        if texts and field is not None and not isinstance(part.get(field), str):
            raise RequestError(
                f"{place}.{field} is {short(part.get(field))}; allowed: a string", f"{place}.{field}"
            )


def _check_answer(content: Any, where: str) -> None:
    """vLLM reads the text of an earlier answer's first part (entrypoints/openai/responses/utils.py)."""
    if not isinstance(content, list):
        return
    first = content[0] if content else None
    if not isinstance(first, dict) or first.get("type") == "refusal":
        place = f"{where}[0]" if content else where
        raise RequestError(f"{place} is {short(first)}; an answer must begin with a text", place)


def _check_count(items: list[Any], where: str, most: int) -> None:
    if len(items) > most:
        raise RequestError(f"{where} has {len(items)} items; at most {most} are allowed", where, status=422)
