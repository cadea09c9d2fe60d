"""What a request may give as its inputs: texts, token ids and chat messages, and how many of them."""

from __future__ import annotations

from typing import Any, Protocol

from orthrus.server.chat_parts import check_messages
from orthrus.server.errors import RequestError, is_int, short

# What a caller can do about an input that is too long.
CUTS = "truncate_prompt_tokens cuts longer inputs"
SPLITS = f"{CUTS}, and long_input 'split' of /v1/embeddings takes them in windows"
COHERE_CUTS = "truncate 'START' or 'END' cuts longer inputs"
COHERE_INPUTS = ("texts", "inputs", "images")


class InputLimits(Protocol):
    """The limits that inputs are held against. Lengths are in tokens."""

    @property
    def max_model_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_inputs(self) -> int: ...


def check_count(items: list[Any], field: str, limits: InputLimits) -> None:
    """Refuse more than `max_inputs` items with status 422."""
    if len(items) > limits.max_inputs:
        raise RequestError(
            f"{field} has {len(items)} items; at most {limits.max_inputs} are allowed in one request",
            field,
            status=422,
        )


def check_input(given: Any, limits: InputLimits, *, truncated: bool) -> None:
    """Check the field `input`; `truncated`: too long an input is no error. Raises RequestError."""
    if isinstance(given, str):
        check_text(given, "input", "input")
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
        check_messages(given, "input")
        return
    if is_int(given[0]):
        _check_token_ids(given, "input", limits, truncated=truncated)
        return
    check_count(given, "input", limits)
    kind = type(given[0])
    for i, item in enumerate(given):
        _check_item(item, f"input[{i}]", kind, limits, truncated=truncated)


def check_text(text: str, where: str, param: str) -> None:
    """Refuse an empty text. Raises RequestError."""
    if not text:
        raise RequestError(f"{where} is an empty string; give at least one character", param)


def _check_item(item: Any, where: str, kind: type, limits: InputLimits, *, truncated: bool) -> None:
    if not isinstance(item, str | list) or type(item) is not kind:
        raise RequestError(
            f"{where} is {short(item)}; all items must be strings, or all lists of token ids", "input"
        )
    if not item:
        raise RequestError(f"{where} is empty; give at least one character or token id", "input")
    if isinstance(item, str):
        return
    if all(isinstance(message, dict) for message in item):
        check_messages(item, where)
    else:
        _check_token_ids(item, where, limits, truncated=truncated)


def check_token_ids(ids: list[Any], where: str, param: str, limits: InputLimits) -> None:
    """Refuse what is no whole number (a boolean, too), or not in the vocabulary. Raises RequestError."""
    if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < limits.vocab_size:
        return
    for i, token_id in enumerate(ids):
        if not is_int(token_id) or not 0 <= token_id < limits.vocab_size:
            raise RequestError(
                f"{where}[{i}] is {short(token_id)}; token ids are whole numbers from 0 to "
                f"{limits.vocab_size - 1}",
                param,
            )


def _check_token_ids(ids: list[Any], where: str, limits: InputLimits, *, truncated: bool) -> None:
    check_token_ids(ids, where, "input", limits)
    if not truncated and len(ids) > limits.max_model_len:
        raise RequestError(
            f"{where} has {len(ids)} tokens; this model takes at most {limits.max_model_len} ({SPLITS})",
            "input",
        )
