"""What the client writes down for each request: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass
class Record:
    """One request as the client saw it. Times are seconds from the start of the measuring window.

    due: when it should have been sent; start: when it was. first: the first token, or the whole answer
    of an embedding. tokens: the arrival of every streamed chunk (vLLM sends a token per chunk unless it is
    behind). end: the last byte, or the failure. tokens_in: as asked for, or as the server counts them.
    error: empty when all is well.
    """

    id: int
    kind: str
    due: float
    start: float
    server: str
    phase: int = 0
    session: int | None = None
    adapter: str | None = None
    first: float | None = None
    tokens: list[float] = field(default_factory=list)
    end: float | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    status: int | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether it was answered in full."""
        return not self.error and self.end is not None

    def line(self) -> str:
        """The record as a line of JSON, times to the microsecond."""
        values = asdict(self)
        for key in ("due", "start", "first", "end"):
            if values[key] is not None:
                values[key] = round(values[key], 6)
        values["tokens"] = [round(time, 6) for time in self.tokens]
        return json.dumps(values)


@dataclass(frozen=True)
class ClientRun:
    """A finished measuring window: its records and what they cost the client.

    windows: begin and end of each phase (one, without phases): as long as asked for, or until the last
    request's end where a number of requests was asked for. cpu_seconds: user and system time of the client
    process from the first window's begin to the last answer. late_p99: seconds by which requests were sent
    late (99th percentile); a client that cannot keep up shows here.
    """

    windows: list[tuple[float, float]]
    cpu_seconds: float
    late_p99: float
    records: list[Record]


def write_run(path: Path, run: ClientRun) -> None:
    """Write a header line with the window, then a line for each record."""
    # Rounded as the records are: a window that ends with its last request must still hold it.
    windows = [(round(begin, 6), round(end, 6)) for begin, end in run.windows]
    head = {"windows": windows, "cpu_seconds": run.cpu_seconds, "late_p99": run.late_p99}
    lines: Iterable[str] = [json.dumps(head), *(record.line() for record in run.records)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_run(path: Path) -> ClientRun:
    """What `write_run` wrote; ValueError for another file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    names = {item.name for item in fields(Record)}
    try:
        head: dict[str, Any] = json.loads(lines[0])
        records = [Record(**json.loads(line)) for line in lines[1:]]
        windows = [(begin, end) for begin, end in head.pop("windows")]
        return ClientRun(**head, windows=windows, records=records)
    except (IndexError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} holds no client run (a header, then lines with {sorted(names)}): {error}"
        ) from error
