"""What requests to /pooling, /score, /rerank and /v2/embed may contain: pure checks of the JSON body.

The same findings as for /v1/embeddings (checks.py): each returns the body in the form that vLLM's own request
models take (entrypoints/pooling), or raises a RequestError.
"""

from __future__ import annotations

from typing import Any

from orthrus.engine.embedding import TOKEN_TASK
from orthrus.server.checks import (
    EmbeddingLimits,
    check_dimensions,
    check_embedding,
    check_object,
    check_pooling_field,
    check_truncation,
)
from orthrus.server.errors import RequestError, short
from orthrus.server.fields import COHERE, POOLING, RERANK, SCORE
from orthrus.server.inputs import COHERE_INPUTS, check_count, check_text
from orthrus.server.media import refuse_files

PAIRS = (("queries", "documents"), ("text_1", "text_2"), ("data_1", "data_2"), ("queries", "items"))
TASKS = ("embed", TOKEN_TASK)
SCORINGS = ("cosine", "maxsim")


def check_pooling(body: object, limits: EmbeddingLimits) -> dict[str, Any]:
    """A request to /pooling; one with `data` only is for an I/O processor plugin, which checks it itself."""
    if isinstance(body, dict) and "data" in body and not {"input", "messages"} & body.keys():
        return check_object(body, POOLING, limits)
    request = check_embedding(body, limits, POOLING)
    task = request.get("task")
    if task is not None and task not in TASKS:
        raise RequestError(f"task is {short(task)}; allowed: {', '.join(TASKS)}", "task")
    if task == TOKEN_TASK and request.get("pooling") is not None:
        raise RequestError(f"pooling has no effect with task {TOKEN_TASK!r}; drop one of them", "pooling")
    return request


def check_score(body: object, limits: EmbeddingLimits) -> dict[str, Any]:
    """A request to /score: one query or as many as documents, in one of vLLM's pairs of fields."""
    request = check_object(body, SCORE, limits)
    given = {field for pair in PAIRS for field in pair if field in request}
    pair = next((pair for pair in PAIRS if set(pair) == given), None)
    if pair is None:
        raise _no_pair(given)
    first, second = (_check_texts(request, field, limits) for field in pair)
    if first not in (1, second):
        raise RequestError(
            f"{pair[0]} has {first} items and {pair[1]} {second}; allowed: one, or as many as {pair[1]}",
            pair[0],
        )
    _check_scoring(request, limits)
    return request


def _no_pair(given: set[str]) -> RequestError:
    """What is wrong with the fields `given` to compare: one that is alone misses its partner."""
    allowed = "; ".join(" and ".join(names) for names in PAIRS)
    if len(given) == 1:
        [field] = given
        partners = [name for pair in PAIRS if field in pair for name in pair if name != field]
        return RequestError(
            f"{' or '.join(partners)} is missing beside {field}; allowed: {allowed}", partners[0]
        )
    return RequestError(
        f"{' and '.join(sorted(given)) or 'nothing'} is given to compare; allowed: {allowed}",
        next(iter(sorted(given)), PAIRS[0][0]),
    )


def check_rerank(body: object, limits: EmbeddingLimits) -> dict[str, Any]:
    """A request to /rerank, /v1/rerank or /v2/rerank: one query, any number of documents up to the limit."""
    request = check_object(body, RERANK, limits)
    for field in ("query", "documents"):
        if field not in request:
            raise RequestError(f"'{field}' is required", field)
    if not isinstance(request["query"], str | dict):
        raise RequestError(f"query is {short(request['query'])}; allowed: one text", "query")
    for field in ("query", "documents"):
        _check_texts(request, field, limits)
    _check_scoring(request, limits)
    return request


def check_cohere(body: object, limits: EmbeddingLimits) -> dict[str, Any]:
    """A request to /v2/embed, in Cohere's form."""
    request = check_object(body, COHERE, limits)
    given = [field for field in COHERE_INPUTS if request.get(field) is not None]
    if len(given) != 1:
        raise RequestError(
            f"{' and '.join(given) or 'no input'} is given; give exactly one of {', '.join(COHERE_INPUTS)}",
            given[0] if given else COHERE_INPUTS[0],
        )
    if given == ["texts"]:
        _check_texts(request, "texts", limits)
    elif isinstance(request[given[0]], list):
        check_count(request[given[0]], given[0], limits)
    if limits.text_only:
        refuse_files(request, "images")
    check_dimensions(request, limits, "output_dimension")
    tokens = request.get("max_tokens")
    if tokens is not None and not 1 <= tokens <= limits.max_model_len:
        raise RequestError(f"max_tokens is {tokens}; allowed: 1 to {limits.max_model_len}", "max_tokens")
    return request


def _check_texts(request: dict[str, Any], field: str, limits: EmbeddingLimits) -> int:
    """Check a text or a list of texts, where an object is content for multimodal models; returns how many."""
    given = request[field]
    items = given if isinstance(given, list) else [given]
    if not items:
        raise RequestError(f"{field} is an empty list; give at least one text", field)
    check_count(items, field, limits)
    for i, item in enumerate(items):
        where = f"{field}[{i}]" if isinstance(given, list) else field
        if isinstance(item, str):
            check_text(item, where, field)
        elif not isinstance(item, dict):
            allowed = "a string" if where != field else "a string or a list of strings"
            raise RequestError(f"{where} is {short(item)}; allowed: {allowed}", field)
    return len(items)


def _check_scoring(request: dict[str, Any], limits: EmbeddingLimits) -> None:
    check_truncation(request, limits)
    check_pooling_field(request, limits)
    scoring = request.get("scoring")
    if scoring is not None and scoring not in SCORINGS:
        raise RequestError(f"scoring is {short(scoring)}; allowed: {', '.join(SCORINGS)}", "scoring")
    if scoring == "maxsim" and request.get("pooling") is not None:
        raise RequestError("pooling has no effect with scoring 'maxsim'; drop one of them", "pooling")
