"""Fields that change how many vectors an input gives: `spans` of one document, `long_input` in windows.

Pure checks of the JSON body, called by checks.py, and how such inputs are tokenised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orthrus.server.errors import RequestError, is_int, short

SPAN_UNITS = ("token", "char")
LONG_INPUTS = ("refuse", "split")


def check_shapes(request: dict[str, Any], max_model_len: int, max_vectors: int) -> None:
    """Check and normalise `spans`, `span_unit`, `long_input` and `overlap` in place. Raises RequestError.

    `max_vectors` bounds the spans of all inputs together: each is an item of the answer.
    """
    for field in ("spans", "span_unit", "long_input", "overlap"):
        if request.get(field) is None:
            request.pop(field, None)
    _check_spans(request, max_vectors)
    _check_long_input(request, max_model_len)


def splits(request: dict[str, Any]) -> bool:
    """Whether inputs longer than the model are split."""
    return request.get("long_input") == "split"


def tokenization(parameters: Any, *, split: bool, span_unit: object) -> Any:
    """vLLM's TokenizeParams for these fields: no length limit for what is split, offsets for characters."""
    if split:
        parameters = replace(parameters, max_total_tokens=None)
    if span_unit == "char":
        parameters = replace(parameters, return_token_offsets=True)
    return parameters


def _check_spans(request: dict[str, Any], max_vectors: int) -> None:
    unit = request.get("span_unit", "token")
    if unit not in SPAN_UNITS:
        raise RequestError(f"span_unit is {short(unit)}; allowed: {', '.join(SPAN_UNITS)}", "span_unit")
    if "spans" not in request:
        if "span_unit" in request:
            raise RequestError("span_unit is given without spans", "span_unit")
        return
    given, inputs = request["spans"], request.get("input")
    for field in ("messages", "truncate_prompt_tokens", "long_input"):
        if request.get(field) is not None:
            raise RequestError(f"spans cannot be combined with {field}", "spans")
    single = isinstance(inputs, str) or (isinstance(inputs, list) and bool(inputs) and is_int(inputs[0]))
    if not isinstance(given, list):
        raise RequestError(f"spans is {short(given)}; allowed: a list of [start, end] pairs", "spans")
    if single:
        given = [given]
    elif not isinstance(inputs, list) or len(given) != len(inputs):
        count = len(inputs) if isinstance(inputs, list) else 0
        raise RequestError(f"spans has {len(given)} items for {count} inputs; give a list for each", "spans")
    texts: list[Any] = inputs if isinstance(inputs, list) and not single else [inputs]
    if unit == "char" and not all(isinstance(text, str) for text in texts):
        raise RequestError("span_unit 'char' needs inputs that are text", "span_unit")
    wanted = sum(len(pairs) for pairs in given if isinstance(pairs, list))
    if wanted > max_vectors:
        raise RequestError(
            f"{wanted} spans in one request; at most {max_vectors} are allowed (--max-embedding-inputs)",
            "spans",
            status=422,
        )
    for i, pairs in enumerate(given):
        where = "spans" if single else f"spans[{i}]"
        if not isinstance(pairs, list) or not pairs:
            raise RequestError(f"{where} is {short(pairs)}; allowed: a list of [start, end] pairs", "spans")
        for j, pair in enumerate(pairs):
            if not isinstance(pair, list) or len(pair) != 2 or not all(is_int(edge) for edge in pair):
                raise RequestError(
                    f"{where}[{j}] is {short(pair)}; allowed: [start, end], two whole numbers", "spans"
                )
            start, end = pair
            if unit == "char" and not 0 <= start < end <= len(texts[i]):
                raise RequestError(
                    f"{where}[{j}] is [{short(start)}, {short(end)}]; allowed: 0 <= start < end <= "
                    f"{len(texts[i])}, the input's characters",
                    "spans",
                )
    request["spans"] = given


def _check_long_input(request: dict[str, Any], max_model_len: int) -> None:
    wanted = request.get("long_input", "refuse")
    if wanted not in LONG_INPUTS:
        raise RequestError(f"long_input is {short(wanted)}; allowed: {', '.join(LONG_INPUTS)}", "long_input")
    overlap = request.get("overlap")
    if wanted == "refuse":
        if overlap is not None:
            raise RequestError("overlap is given without long_input 'split'", "overlap")
        return
    if request.get("truncate_prompt_tokens") is not None:
        raise RequestError("an input is either split or truncated: drop truncate_prompt_tokens", "long_input")
    # Beyond half a window every token would be computed more than twice.
    if overlap is not None and (not is_int(overlap) or not 0 <= overlap <= max_model_len // 2):
        raise RequestError(
            f"overlap is {short(overlap)}; allowed: 0 to {max_model_len // 2} tokens", "overlap"
        )
