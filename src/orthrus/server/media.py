"""Images, audio and video in a request to a model that takes text only: refused before anything is fetched.

vLLM fetches what a message's parts name before it finds that the model has no use for it.
"""

from __future__ import annotations

from typing import Any

from orthrus.server.errors import RequestError
from orthrus.server.values import Place, where_is

NESTED = frozenset({list, dict})
KINDS = ("image", "audio", "video")
# vLLM takes a part that has no type, or a `uuid`, by such a key.
KEYS = frozenset(
    {
        "image_url",
        "image_pil",
        "image_embeds",
        "audio_url",
        "input_audio",
        "audio_embeds",
        "video_url",
        "video_embeds",
    }
)
TYPES = KEYS | {*KINDS, "input_image", "input_video", "input_file", "file"}
# Fields that hold messages or content parts: of chats, responses, embeddings, scores and Cohere's form.
FIELDS = (
    "messages",
    "input",
    "inputs",
    "query",
    "queries",
    "documents",
    "text_1",
    "text_2",
    "data_1",
    "data_2",
    "system",
)


def refuse_media(body: dict[str, Any]) -> None:
    """Raise RequestError for the first content part that is no text; `param` is its place."""
    for field in FIELDS:
        value = body.get(field)
        # Beside a chat, `documents` are the caller's own objects, for its template.
        if type(value) in NESTED and not (field == "documents" and "messages" in body):
            _refuse_parts(value, field)


def refuse_files(body: dict[str, Any], *fields: str) -> None:
    """Raise RequestError for a field that lists images, audio or video, unless it is empty."""
    for field in fields:
        if body.get(field):
            raise RequestError(f"{field} is given; this model takes text only", field)


def _refuse_parts(outermost: Any, field: str) -> None:
    """Look at every object in which a message or a part may lie.

    Those are the items of lists, and of the fields `content` and `output` (a tool's result). Arguments of a
    tool's call are the caller's own JSON, whatever their keys.
    """
    pending: list[tuple[Any, Place]] = [(outermost, (field, None))]
    while pending:
        item, place = pending.pop()
        if isinstance(item, list):
            if not NESTED.isdisjoint(map(type, item)):
                inner = [
                    (child, (i, place)) for i, child in enumerate(item) if type(child) in NESTED and child
                ]
                pending.extend(reversed(inner))
            continue
        kind = _kind(item)
        if kind is not None:
            where = where_is(place)
            raise RequestError(f"{where} is of type {kind!r}; this model takes text only", where)
        for name in ("output", "content"):
            if type(item.get(name)) in NESTED:
                pending.append((item[name], (name, place)))


def _kind(part: dict[str, Any]) -> str | None:
    """The type of a part that is no text; None for text, messages and tool calls."""
    kind = part.get("type")
    if isinstance(kind, str) and kind in TYPES:
        return kind
    if (kind is None or "uuid" in part) and not KEYS.isdisjoint(part):
        return next(key for key in part if key in KEYS)
    return None
