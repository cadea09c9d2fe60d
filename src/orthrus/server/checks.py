"""What an embeddings request may contain: pure checks of the JSON body, before the engine sees anything.

Each finding becomes a RequestError that names the field (and the position in the input) and what is
allowed; `check_embedding` returns the body in the form that vLLM's own request models take.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from orthrus.server.chat_parts import check_chat_parts, check_messages
from orthrus.server.errors import RequestError, is_int, short
from orthrus.server.fields import EMBEDDINGS, check_whole_numbers, refuse_misplaced
from orthrus.server.inputs import check_count, check_input
from orthrus.server.media import refuse_media
from orthrus.server.shapes import check_shapes, splits
from orthrus.server.values import check_values

ENCODINGS = ("float", "base64", "bytes", "bytes_only")


@dataclass(frozen=True)
class EmbeddingLimits:
    """What this server serves. Lengths are in tokens."""

    max_model_len: int
    vocab_size: int
    native_size: int
    max_inputs: int
    allowed_pooling: tuple[str, ...]
    smaller_dimensions: bool
    text_only: bool = True


def parse_body(content: bytes) -> object:
    """The JSON value in a request's body. Raises RequestError where it is none, or is nested too deep."""
    try:
        return json.loads(content)
    except ValueError as error:  # JSON, encoding, or a number of too many digits
        raise RequestError(f"the request body is not JSON: {error}", "body") from error
    except RecursionError as error:
        raise RequestError("the request body is nested too deep", "body") from error


def check_embedding(body: object, limits: EmbeddingLimits, route: str = EMBEDDINGS) -> dict[str, Any]:
    """The request body, checked and normalised. Raises RequestError."""
    request = check_object(body, route, limits)
    if "input" not in request and "messages" not in request:
        raise RequestError("'input' (or 'messages') is required", "input")
    if request.get("input") is not None and request.get("messages") is not None:
        raise RequestError("input and messages are both given; give one of the two", "messages")
    _check_encoding(request)
    check_pooling_field(request, limits)
    _check_normalize(request)
    check_dimensions(request, limits)
    check_truncation(request, limits)
    check_shapes(request, limits.max_model_len, limits.max_inputs)
    messages = request.get("messages")
    if messages == []:
        raise RequestError("messages is an empty list; give at least one message", "messages")
    if isinstance(messages, list) and any(isinstance(item, list) for item in messages):  # several chats
        check_count(messages, "messages", limits)
        for i, chat in enumerate(messages):
            if isinstance(chat, list):
                check_messages(chat, f"messages[{i}]")
    elif isinstance(messages, list):
        check_messages(messages, "messages")
    if "input" in request:
        cut = splits(request) or request.get("truncate_prompt_tokens") is not None
        check_input(request["input"], limits, truncated=cut)
    for field in ("messages", "input"):
        _check_chats(request.get(field), field, limits)
    return request


def _check_chats(given: Any, where: str, limits: EmbeddingLimits) -> None:
    """Check the parts of the messages of a chat, or of several."""
    if not isinstance(given, list):
        return
    for i, item in enumerate(given):
        if isinstance(item, dict):
            check_chat_parts(item, f"{where}[{i}]", text_only=limits.text_only)
        elif isinstance(item, list) and any(isinstance(inner, dict) for inner in item):
            _check_chats(item, f"{where}[{i}]", limits)


def check_object(body: object, route: str, limits: EmbeddingLimits) -> dict[str, Any]:
    """A copy of the body of a request to `route`: an object, its fields at the right place. RequestError."""
    if not isinstance(body, dict):
        raise RequestError("the request body must be a JSON object", "body")
    check_values(body)
    if limits.text_only:
        refuse_media(body)
    refuse_misplaced(body, route)
    check_whole_numbers(body)
    return dict(body)


def _check_encoding(request: dict[str, Any]) -> None:
    encoding = request.get("encoding_format")
    if encoding is None:
        request.pop("encoding_format", None)
        return
    if not isinstance(encoding, str) or encoding not in ENCODINGS:
        raise RequestError(
            f"encoding_format is {short(encoding)}; allowed: {', '.join(ENCODINGS)}", "encoding_format"
        )
    if encoding == "base64":
        request.setdefault("endianness", "little")


def check_pooling_field(request: dict[str, Any], limits: EmbeddingLimits) -> None:
    """Check `pooling`, the head. Raises RequestError."""
    pooling = request.get("pooling")
    if pooling is not None and (not isinstance(pooling, str) or pooling not in limits.allowed_pooling):
        raise RequestError(
            f"pooling is {short(pooling)}; allowed: {', '.join(limits.allowed_pooling)}", "pooling"
        )


def _check_normalize(request: dict[str, Any]) -> None:
    normalize = request.pop("normalize", None)
    if normalize is None:
        return
    if not isinstance(normalize, bool):
        raise RequestError(f"normalize is {short(normalize)}; allowed: true or false", "normalize")
    if request.get("use_activation") not in (None, normalize):
        raise RequestError("normalize and use_activation say the opposite; give one of them", "normalize")
    request["use_activation"] = normalize


def check_dimensions(request: dict[str, Any], limits: EmbeddingLimits, field: str = "dimensions") -> None:
    """Check the size asked for, and drop the native one. Raises RequestError."""
    dimensions = request.get(field)
    if dimensions is None or (is_int(dimensions) and dimensions == limits.native_size):
        request.pop(field, None)
        return
    if not limits.smaller_dimensions:
        raise RequestError(
            f"{field} is {short(dimensions)}; this model gives {limits.native_size} dimensions only "
            f"(an operator may allow fewer with --matryoshka)",
            field,
        )
    if not is_int(dimensions) or not 1 <= dimensions <= limits.native_size:
        raise RequestError(f"{field} is {short(dimensions)}; allowed: 1 to {limits.native_size}", field)


def check_truncation(request: dict[str, Any], limits: EmbeddingLimits) -> None:
    """Check `truncate_prompt_tokens`. Raises RequestError."""
    truncation = request.get("truncate_prompt_tokens")
    if truncation is None:
        request.pop("truncate_prompt_tokens", None)
        return
    if not is_int(truncation) or not (truncation == -1 or 1 <= truncation <= limits.max_model_len):
        raise RequestError(
            f"truncate_prompt_tokens is {short(truncation)}; allowed: 1 to {limits.max_model_len}, "
            f"or -1 for the model's limit",
            "truncate_prompt_tokens",
        )
