"""What every benchmark of embeddings alone writes and prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from orthrus.bench import machine


def publish(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    results: dict[str, Any],
    out: Path,
    console: Console,
    notes: Sequence[str] = (),
) -> None:
    """Print `rows` as a table and write `results` with machine, versions and command to `out`/`name`.json."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column != columns[0] else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for note in notes:
        console.print(note)
    out.mkdir(parents=True, exist_ok=True)
    document = {"benchmark": name, "command": sys.argv[1:], "machine": machine.facts(), **results}
    file = out / f"{name}.json"
    file.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"Written to {file}", highlight=False)
