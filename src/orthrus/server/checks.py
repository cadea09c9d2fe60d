"""What an embeddings request may contain: pure checks of the JSON body, before the engine sees anything.

Each finding becomes a RequestError that names the field (and the position in the input) and what is
allowed; `check_embedding` returns the body in the form that vLLM's own request models take.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from orthrus.server.errors import RequestError, is_int, short
from orthrus.server.shapes import check_shapes, splits

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


def parse_body(content: bytes) -> object:
    """The JSON value in a request's body. Raises RequestError where it is none, or is nested too deep."""
    try:
        return json.loads(content)
    except ValueError as error:  # JSON, encoding, or a number of too many digits
        raise RequestError(f"the request body is not JSON: {error}", "body") from error
    except RecursionError as error:
        raise RequestError("the request body is nested too deep", "body") from error


def check_embedding(body: object, limits: EmbeddingLimits) -> dict[str, Any]:
    """The request body, checked and normalised. Raises RequestError."""
    if not isinstance(body, dict):
        raise RequestError("the request body must be a JSON object", "body")
    request = dict(body)
    _check_text(request.get("model"), "model", "model")
    if "input" not in request and "messages" not in request:
        raise RequestError("'input' (or 'messages') is required", "input")
    _check_encoding(request)
    _check_pooling(request, limits)
    _check_dimensions(request, limits)
    _check_truncation(request, limits)
    check_shapes(request, limits.max_model_len)
    if "input" in request:
        cut = splits(request) or request.get("truncate_prompt_tokens") is not None
        _check_input(request["input"], limits, truncated=cut)
    return request


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


def _check_pooling(request: dict[str, Any], limits: EmbeddingLimits) -> None:
    pooling = request.get("pooling")
    if pooling is not None and (not isinstance(pooling, str) or pooling not in limits.allowed_pooling):
        raise RequestError(
            f"pooling is {short(pooling)}; allowed: {', '.join(limits.allowed_pooling)}", "pooling"
        )
    normalize = request.pop("normalize", None)
    if normalize is None:
        return
    if not isinstance(normalize, bool):
        raise RequestError(f"normalize is {short(normalize)}; allowed: true or false", "normalize")
    request["use_activation"] = normalize


def _check_dimensions(request: dict[str, Any], limits: EmbeddingLimits) -> None:
    dimensions = request.get("dimensions")
    if dimensions is None or (is_int(dimensions) and dimensions == limits.native_size):
        request.pop("dimensions", None)
        return
    if not limits.smaller_dimensions:
        raise RequestError(
            f"dimensions is {short(dimensions)}; this model gives {limits.native_size} dimensions only "
            f"(an operator may allow fewer with --matryoshka)",
            "dimensions",
        )
    if not is_int(dimensions) or not 1 <= dimensions <= limits.native_size:
        raise RequestError(
            f"dimensions is {short(dimensions)}; allowed: 1 to {limits.native_size}", "dimensions"
        )


def _check_truncation(request: dict[str, Any], limits: EmbeddingLimits) -> None:
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


def _check_input(given: Any, limits: EmbeddingLimits, *, truncated: bool) -> None:
    if isinstance(given, str):
        if not given:
            raise RequestError("input is an empty string; give at least one character", "input")
        _check_text(given, "input", "input")
        return
    if not isinstance(given, list):
        raise RequestError(
            f"input is {short(given)}; allowed: a string, a list of strings, a list of token ids, "
            f"or a list of lists of token ids",
            "input",
        )
    if not given:
        raise RequestError("input is an empty list; give at least one text or token id", "input")
    if all(isinstance(item, dict) for item in given):
        _check_messages(given, "input")
        return
    if is_int(given[0]):
        _check_token_ids(given, "input", limits, truncated=truncated)
        return
    if len(given) > limits.max_inputs:
        raise RequestError(
            f"input has {len(given)} items; at most {limits.max_inputs} are allowed in one request",
            "input",
            status=422,
        )
    kind = type(given[0])
    for i, item in enumerate(given):
        _check_item(item, f"input[{i}]", kind, limits, truncated=truncated)


def _check_item(item: Any, where: str, kind: type, limits: EmbeddingLimits, *, truncated: bool) -> None:
    if not isinstance(item, str | list) or type(item) is not kind:
        raise RequestError(
            f"{where} is {short(item)}; all items must be strings, or all lists of token ids", "input"
        )
    if not item:
        raise RequestError(f"{where} is empty; give at least one character or token id", "input")
    if isinstance(item, str):
        _check_text(item, where, "input")
    elif all(isinstance(message, dict) for message in item):
        _check_messages(item, where)
    else:
        _check_token_ids(item, where, limits, truncated=truncated)


def _check_text(text: object, where: str, param: str) -> None:
    if not isinstance(text, str):
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{where} has a lone surrogate ({text[error.start]!r}) at character {error.start}; "
            f"it is not valid Unicode text",
            param,
        ) from error


def _check_messages(messages: list[dict[str, Any]], where: str) -> None:
    for i, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise RequestError(f"{where}[{i}] is a chat message without a 'role'", "input")


def _check_token_ids(ids: list[Any], where: str, limits: EmbeddingLimits, *, truncated: bool) -> None:
    for i, token_id in enumerate(ids):
        if not is_int(token_id) or not 0 <= token_id < limits.vocab_size:
            raise RequestError(
                f"{where}[{i}] is {short(token_id)}; token ids are whole numbers from 0 to "
                f"{limits.vocab_size - 1}",
                "input",
            )
    if not truncated and len(ids) > limits.max_model_len:
        raise RequestError(
            f"{where} has {len(ids)} tokens; this model takes at most {limits.max_model_len} "
            f"(truncate_prompt_tokens cuts longer inputs)",
            "input",
        )
