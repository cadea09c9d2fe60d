"""The parts of a chat message: vLLM reads them late, and reports the findings of pydantic as they are."""

from __future__ import annotations

from types import NoneType
from typing import Any

from orthrus.server.errors import RequestError, short
from orthrus.server.media import KEYS, TYPES

# The string that a part of each type holds. vLLM skips a part whose string is null.
TEXTS = {
    "text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "input_text": "text",
    "output_text": "text",
}
OTHERS = ("tool_reference", "prompt_embeds")
UNTYPED = KEYS | frozenset(OTHERS)  # what a part without a type is known by
# In messages of these roles vLLM takes texts, and these types, only beside a part of another type.
ROLES = frozenset({"user", "system", "developer", "assistant"})
BESIDE = frozenset({"input_text", "output_text"})


def check_messages(chat: list[Any], where: str) -> None:
    """Every message is an object with a role, and its content of a kind that it can have.

    Pydantic would have tens of findings about each bad one, and for many of them the server would do nothing
    else for seconds or minutes. RequestError names the first.
    """
    for i, message in enumerate(chat):
        place = f"{where}[{i}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(f"{place} is {short(message)}; allowed: objects with a 'role'", place)
        if not isinstance(message.get("content"), (str, list, NoneType)):
            allowed = "a string or a list of parts"
            raise RequestError(
                f"{place}.content is {short(message['content'])}; allowed: {allowed}", f"{place}.content"
            )


def check_chat_parts(message: dict[str, Any], where: str, *, text_only: bool) -> None:
    """Check a message's content where it is a list. RequestError names the place of the first bad part."""
    content = message.get("content")
    if not isinstance(content, list):
        return
    for i, part in enumerate(content):
        if not isinstance(part, str):
            _check_part(part, f"{where}.content[{i}]", text_only)
    if content and message.get("role") in ROLES and not any(map(_stands_alone, content)):
        place = f"{where}.content[0]"
        raise RequestError(f"{place} is {short(content[0])}; {_allowed(text_only)}", place)


def _check_part(part: Any, place: str, text_only: bool) -> None:
    if not isinstance(part, dict):
        raise RequestError(f"{place} is {short(part)}; {_allowed(text_only)}", place)
    kind = part.get("type")
    if kind is None:
        if UNTYPED.isdisjoint(part):
            raise RequestError(f"{place}.type is missing; {_allowed(text_only)}", f"{place}.type")
        return
    if not isinstance(kind, str) or kind not in {*TEXTS, *OTHERS, *TYPES}:
        raise RequestError(f"{place}.type is {short(kind)}; {_allowed(text_only)}", f"{place}.type")
    field = TEXTS.get(kind)
    if field is not None and not isinstance(part.get(field), str | NoneType):
        raise RequestError(f"{place}.{field} is {short(part[field])}; allowed: a string", f"{place}.{field}")


def _stands_alone(part: Any) -> bool:
    """Whether vLLM takes a message for the sake of this part, whatever the others are."""
    if isinstance(part, str):
        return False
    kind = part.get("type")
    if kind in TEXTS:
        return kind not in BESIDE and isinstance(part.get(TEXTS[kind]), str)
    return True


def _allowed(text_only: bool) -> str:
    kinds = [*TEXTS, *OTHERS] if text_only else [*TEXTS, *OTHERS, *sorted(KEYS)]
    named = ", ".join(repr(kind) for kind in kinds if kind not in BESIDE)
    return f"allowed: {named}"
