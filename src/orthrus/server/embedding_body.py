"""The body of `POST /v1/embeddings` as vLLM's request model.

vLLM validates it against a union (entrypoints/pooling/embed/protocol.py), whose members for chats find fault
with every token of an input, and that takes milliseconds: as long as many a step. Here texts and tokens meet
the one member that is for them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from orthrus.engine.compat import (
    EmbeddingCompletionRequest,
    EmbeddingRequest,
    reject_removed_pooling_parameters,
)
from orthrus.server.errors import RequestError
from orthrus.server.findings import explain
from orthrus.server.messages import refuse_bad_message

_ANY: TypeAdapter[Any] = TypeAdapter(EmbeddingRequest)
_TEXTS: TypeAdapter[Any] = TypeAdapter(
    Annotated[EmbeddingCompletionRequest, BeforeValidator(reject_removed_pooling_parameters)]
)


def embedding_request(body: dict[str, Any]) -> Any:
    """The member of vLLM's EmbeddingRequest that `body` is. Raises RequestError."""
    refuse_bad_message(body, "messages", "input")
    try:
        return (_ANY if _is_about_chats(body) else _TEXTS).validate_python(body)
    except ValidationError as error:
        message, field = explain(error.errors(), body)
        raise RequestError(message, field) from error


def _is_about_chats(body: dict[str, Any]) -> bool:
    """Whether messages are given, be it as `input`: one chat or a list of chats. Or what is for chats alone.

    vLLM refuses a text's body, too, where its two fields on how a chat ends contradict each other.
    """
    first = body.get("input")
    for _ in range(2):
        if isinstance(first, list) and first:
            first = first[0]
    return body.get("messages") is not None or isinstance(first, dict) or "continue_final_message" in body
