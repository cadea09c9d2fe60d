"""A request that is refused, its answer, and how its values are shown and told apart."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

# The names that vLLM gives to these (entrypoints/serve/exception_handling/error_response.py).
TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    501: "NotImplementedError",
}


class RequestError(ValueError):
    """A request that is refused with `status`; `param` is the field at fault."""

    def __init__(self, message: str, param: str, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


def error_body(message: str, status: int, param: str | None = None) -> dict[str, Any]:
    """The body of an answer with `status`, in OpenAI's form."""
    kind = TYPES.get(status) or HTTPStatus(status).phrase
    return {"error": {"message": message, "type": kind, "param": param, "code": int(status)}}


def check_unicode(text: str, where: str, param: str) -> None:
    """Refuse a string with a lone surrogate, which no tokenizer takes. Raises RequestError."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{where} has a lone surrogate ({text[error.start]!r}) at character {error.start}; "
            f"it is not valid Unicode text",
            param,
        ) from error


def is_int(value: object) -> bool:
    """A whole number; JSON's true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def short(value: object) -> str:
    """At most 60 characters of a value, for an error message."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deep, or a number of too many digits
        text = f"a {type(value).__name__}"
    return clipped(text)


def clipped(text: str) -> str:
    """At most 60 characters of a text."""
    return text if len(text) <= 60 else f"{text[:60]}…"
