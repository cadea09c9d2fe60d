"""Strings and numbers anywhere in a request's body that no part of the server can take.

A lone surrogate is no Unicode text, and fails wherever a string is encoded; a number beyond 64 bits fails on
its way to the engine; JSON has no infinity and no NaN, though Python's parser reads them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Any

from orthrus.server.errors import RequestError, check_unicode, short

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# The caller's own JSON, where numbers of any size are fine: in a schema, or a tool's arguments.
FREE_FIELDS = frozenset(
    {
        "messages",
        "tools",
        "tool_choice",
        "functions",
        "response_format",
        "structured_outputs",
        "text",
        "output_config",
        "metadata",
        "documents",
        "chat_template_kwargs",
        "mm_processor_kwargs",
        "media_io_kwargs",
        "data",
    }
)
# Lists of these hold token ids, which are numbers of the request's own, or objects, which are the caller's.
INPUT_FIELDS = frozenset({"input", "inputs", "queries", "items", "data_1", "data_2"})
MOST_WHERE = 200
CONTAINERS = (dict, list)  # made once: `dict | list` costs more than the check itself

Place = tuple[Any, Any] | None  # a key or index, and the place it lies in


def check_values(body: dict[str, Any]) -> None:
    """Refuse the first string or number in `body` that cannot be taken; `param` is its place. RequestError.

    Lists of plain texts or token ids and long texts are looked through by C code only.
    """
    _check_keys(body, None)
    for field, value in body.items():
        if isinstance(value, CONTAINERS):
            _check_inside(value, field)
        else:
            _check_one(value, (field, None), field in FREE_FIELDS)


def _check_inside(outermost: Any, field: str) -> None:
    pending: list[tuple[Any, Place, bool]] = [(outermost, (field, None), field in FREE_FIELDS)]
    while pending:
        value, place, free = pending.pop()
        children: Iterable[tuple[Any, Any]]
        if isinstance(value, dict):
            free = free or field in INPUT_FIELDS
            _check_keys(value, place)
            children = value.items()
        elif _is_plain(value, free):
            continue
        else:
            children = enumerate(value)
        nested = []
        for part, child in children:
            if isinstance(child, CONTAINERS):
                if child:
                    nested.append((child, (part, place), free))
            else:
                _check_one(child, (part, place), free)
        pending.extend(reversed(nested))


def _is_plain(items: list[Any], free: bool) -> bool:
    """Whether these are ASCII texts only, or whole numbers that fit only."""
    if not items:
        return True
    if isinstance(items[0], str):
        return set(map(type, items)) == {str} and all(map(str.isascii, items))
    if free or not isinstance(items[0], int):
        return False
    try:
        array("q", items)
    except (TypeError, OverflowError):
        return False
    return True


def _check_keys(value: dict[str, Any], place: Place) -> None:
    for key in value:
        if not key.isascii():
            where = where_is(place)
            check_unicode(key, f"a key of {where}", where)


def _check_one(value: object, place: Place, free: bool) -> None:
    if isinstance(value, str):
        if not value.isascii():
            where = where_is(place)
            check_unicode(value, where, where)
    elif isinstance(value, float):
        if not math.isfinite(value):
            where = where_is(place)
            raise RequestError(f"{where} is {value}; JSON has no infinity or NaN", where)
        if not free and not INT64_MIN <= value <= INT64_MAX:
            _refuse_number(value, place)
    elif isinstance(value, int) and not free and not INT64_MIN <= value <= INT64_MAX:
        _refuse_number(value, place)


def _refuse_number(value: float, place: Place) -> None:
    where = where_is(place)
    raise RequestError(f"{where} is {short(value)}; allowed: numbers from -2**63 to 2**63 - 1", where)


def where_is(place: Place) -> str:
    """The place in words, as `messages[1].content`; "body" where it is the whole."""
    parts: list[str] = []
    while place is not None:
        part, place = place
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part}")
    return "".join(reversed(parts)).removeprefix(".")[:MOST_WHERE] or "body"
