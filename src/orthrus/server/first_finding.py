"""Lists in vLLM's request models that end at the first item that is malformed.

Pydantic tries every member of a union on such an item, collects what each has against it, and goes on with
the next: thousands of them would hold the whole server up for many seconds, and only one finding is told.
"""

from __future__ import annotations

from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import FailFast


class FirstOnly(FailFast):
    """Pydantic's marker for a list, hashable as `Union` wants it."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


def stop_at_first(request_model: Any, name: str) -> None:
    """Rebuild a model so for its field `name`, a list or a text or a list.

    Routes that take the model must be added after that: they keep what they were made with.
    """
    field = request_model.model_fields[name]
    if get_origin(field.annotation) is list:
        field.metadata = [*field.metadata, FirstOnly()]
    else:
        text, items = get_args(field.annotation)
        field.annotation = Union[text, Annotated[items, FirstOnly()]]  # noqa: UP007
    request_model.model_rebuild(force=True)
