"""vLLM's refusals of a request as plain Python errors, for programs that know nothing of vLLM's classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orthrus.engine.compat import VLLMError, VLLMValidationError


@contextmanager
def plain_errors() -> Iterator[None]:
    """vLLM's refusals of a request as ValueError, without the wrapper (EngineGenerateError) around some."""
    try:
        yield
    except VLLMValidationError as error:
        raise ValueError(str(error)) from error
    except VLLMError as error:
        if isinstance(error.__cause__, ValueError | TypeError):
            raise error.__cause__ from None
        raise
