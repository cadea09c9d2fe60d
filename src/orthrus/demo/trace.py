"""Reading a step trace (`orthrus serve --trace-steps FILE`) while the server writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """One engine step: tokens by kind (embed, prefill, decode), requests by kind (embed, generate)."""

    number: int
    time: float
    budget: int
    tokens: dict[str, int]
    running: dict[str, int]
    waiting: dict[str, int]

    @property
    def total(self) -> int:
        """All tokens of the step."""
        return sum(self.tokens.values())

    @classmethod
    def parse(cls, line: str) -> Step:
        """One line of the trace."""
        record = json.loads(line)
        return cls(
            number=record["step"],
            time=record["time"],
            budget=record["budget"],
            tokens=record["tokens"],
            running=record["running"],
            waiting=record["waiting"],
        )


class TraceReader:
    """Returns each complete line once; a line still being written waits for its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Step]:
        """The steps written since the last call; none while the file does not exist."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data.rfind(b"\n") + 1
        self._offset += complete
        return [Step.parse(line) for line in data[:complete].decode("utf-8").splitlines()]
