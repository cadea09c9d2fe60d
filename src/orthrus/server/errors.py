"""A request that is refused, and how its values are shown and told apart."""

from __future__ import annotations


class RequestError(ValueError):
    """A request that is refused with `status`; `param` is the field at fault."""

    def __init__(self, message: str, param: str, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


def is_int(value: object) -> bool:
    """A whole number; JSON's true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def short(value: object) -> str:
    """At most 60 characters of a value, for an error message."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deep, or a number of too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}…"
