"""The messages of chats against vLLM's model of one, up to the first that does not fit.

The request models have findings about every message, for each member of two unions: many bad messages
would hold the server for minutes and fill its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import FailFast, TypeAdapter, ValidationError

from orthrus.engine.compat import ChatCompletionMessageParam
from orthrus.server.errors import RequestError
from orthrus.server.findings import explain

Place = tuple[str | int, ...]
_CHAT: TypeAdapter[Any] = TypeAdapter(Annotated[list[ChatCompletionMessageParam], FailFast()])


def refuse_bad_message(body: dict[str, Any], *fields: str) -> None:
    """Refuse the first message in `fields` that vLLM's model does not take. Raises RequestError."""
    for place, chat in _chats(body, fields):
        try:
            _CHAT.validate_python(chat)
        except ValidationError as error:
            findings = [{**finding, "loc": (*place, *finding["loc"])} for finding in error.errors()]
            message, field = explain(findings, body)
            raise RequestError(message, field) from error


def _chats(body: dict[str, Any], fields: tuple[str, ...]) -> Iterator[tuple[Place, list[Any]]]:
    """Every chat in the fields, one or a list of them, after its place."""
    for field in fields:
        given = body.get(field)
        if not isinstance(given, list) or not given:
            continue
        if isinstance(given[0], dict):
            yield (field,), given
            continue
        for i, item in enumerate(given):
            if isinstance(item, list) and item and isinstance(item[0], dict):
                yield (field, i), item
