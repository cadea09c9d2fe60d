"""Request fields that only some routes can honour, and fields that hold whole numbers."""

from __future__ import annotations

from typing import Any

from orthrus.server.errors import RequestError, is_int, short

EMBEDDINGS, POOLING, COHERE = "/v1/embeddings", "/pooling", "/v2/embed"
SCORE, RERANK = "/score", "/rerank"

# Where a field has an effect. Elsewhere vLLM's request models would drop it without a word.
HONOURED: dict[str, tuple[str, ...]] = {
    "spans": (EMBEDDINGS,),
    "span_unit": (EMBEDDINGS,),
    "long_input": (EMBEDDINGS,),
    "overlap": (EMBEDDINGS,),
    "dimensions": (EMBEDDINGS, POOLING),
    "normalize": (EMBEDDINGS, POOLING),
    "use_activation": (EMBEDDINGS, POOLING),
    "encoding_format": (EMBEDDINGS, POOLING),
    "embed_dtype": (EMBEDDINGS, POOLING),
    "endianness": (EMBEDDINGS, POOLING),
    "add_special_tokens": (EMBEDDINGS, POOLING),
    "pooling": (EMBEDDINGS, POOLING, SCORE, RERANK),
    "cache_salt": (EMBEDDINGS, POOLING, SCORE, RERANK),
    "truncate_prompt_tokens": (EMBEDDINGS, POOLING, SCORE, RERANK),
    "truncation_side": (EMBEDDINGS, POOLING, SCORE, RERANK),
    "scoring": (SCORE, RERANK),
    "max_tokens_per_query": (SCORE, RERANK),
    "max_tokens_per_doc": (SCORE, RERANK),
    "top_n": (RERANK,),
    "output_dimension": (COHERE,),
}
WHOLE_NUMBERS = ("priority", "max_tokens_per_query", "max_tokens_per_doc", "top_n", "max_tokens")


def refuse_misplaced(request: dict[str, Any], route: str) -> None:
    """Raise RequestError for a field, other than null, that `route` would ignore."""
    for field, routes in HONOURED.items():
        if route not in routes and request.get(field) is not None:
            raise RequestError(f"{field} has no effect on {route}; it is a field of {listed(routes)}", field)


def check_whole_numbers(request: dict[str, Any]) -> None:
    """Refuse what pydantic would turn into a whole number: true, 1.0, "1". Raises RequestError."""
    for field in WHOLE_NUMBERS:
        value = request.get(field)
        if value is None:
            continue
        if not is_int(value):
            raise RequestError(f"{field} is {short(value)}; allowed: a whole number", field)
        if value < 0 and field != "priority":
            raise RequestError(f"{field} is {value}; allowed: 0 or more", field)


def listed(names: tuple[str, ...]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
