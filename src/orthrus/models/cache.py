"""The user cache: one writer at a time, and nothing half made is ever taken for a model."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

COMPLETE = ".complete"


class ChecksumError(RuntimeError):
    """A file is not the one that was expected; the message gives both SHA-256 sums."""


def cache_root() -> Path:
    """`$ORTHRUS_CACHE`, else `$XDG_CACHE_HOME/orthrus`, else `~/.cache/orthrus`."""
    if own := os.environ.get("ORTHRUS_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "orthrus"


def is_complete(folder: Path) -> bool:
    """Whether `folder` was filled by a `fill` that came to its end."""
    return (folder / COMPLETE).is_file()


def fill(
    folder: Path, make: Callable[[Path], None], progress: Callable[[str], None] = lambda _: None
) -> None:
    """Have `make` write into a temporary folder, then move it to `folder` in one step.

    Returns at once where the folder is complete; a second caller waits for the first, and
    `progress` is told so. What an interrupted earlier try has left is removed. Errors of `make`
    pass through and leave nothing.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{folder.name}.lock", progress):
        if is_complete(folder):
            return
        for leftover in folder.parent.glob(f".{folder.name}.tmp-*"):
            shutil.rmtree(leftover)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.tmp-", dir=folder.parent))
        try:
            make(work)
            (work / COMPLETE).touch()
            work.chmod(0o755)
            if folder.exists():
                shutil.rmtree(folder)
            work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def check_sha256(path: Path, expected: str) -> None:
    """Raise ChecksumError unless the file has this SHA-256 sum (hexadecimal)."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ChecksumError(f"{path.name} has SHA-256 {found}, expected {expected}")


@contextmanager
def _locked(path: Path, progress: Callable[[str], None]) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that is fetching it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
