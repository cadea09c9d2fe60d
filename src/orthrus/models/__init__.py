"""Where models come from: sample models by short name, everything else as Hugging Face ids or folders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from orthrus.models import smollm2
from orthrus.models.cache import cache_root, is_complete

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = {smollm2.NAME: smollm2.SAMPLE}


class UnknownModelError(ValueError):
    """No sample model has this name; the message lists those that exist."""


def path_of(name: str) -> Path:
    """The folder of the sample model `name`, whether it is there yet or not. Raises UnknownModelError."""
    if name not in SAMPLES:
        raise UnknownModelError(f"no sample model is called {name!r}; known: {', '.join(sorted(SAMPLES))}")
    return cache_root() / "models" / SAMPLES[name].folder


def is_present(name: str) -> bool:
    """Whether the sample model is in the cache, whole. Raises UnknownModelError."""
    return is_complete(path_of(name))


def get(name: str, progress: Callable[[str], None] = lambda _: None) -> Path:
    """The folder of a sample model, fetched and converted on first use.

    `progress` is called with a line for every stage. Raises UnknownModelError, FetchError (no
    download) or ChecksumError.
    """
    folder = path_of(name)
    SAMPLES[name].ensure(folder, progress)
    return folder


def resolve(name_or_path: str) -> str:
    """What to hand to vLLM or transformers: a sample model's folder, or the argument unchanged.

    A sample model is fetched where it is missing, with a line on standard error for every stage.
    Raises FetchError or ChecksumError as `get` does.
    """
    if name_or_path in SAMPLES and not Path(name_or_path).exists():
        return str(get(name_or_path, lambda stage: _report(name_or_path, stage)))
    return name_or_path


def _report(name: str, stage: str) -> None:
    sys.stderr.write(f"orthrus: {name}: {stage}\n")
