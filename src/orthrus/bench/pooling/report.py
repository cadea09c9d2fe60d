"""What every benchmark of embeddings alone shows while it runs, prints at the end, and writes."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from orthrus.bench import machine
from orthrus.bench.pooling.engine_process import Job, Round, embed_in_process


@dataclass
class Session:
    """Where a benchmark prints and writes. `seconds` collects how long each of its engines took."""

    console: Console
    out: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, name: str, job: Job) -> list[Round]:
        """Run one engine with a progress bar over its inputs. Raises EngineFailedError."""
        total = sum(map(len, job.rounds))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        begun = time.monotonic()
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(name, total=total)
            rounds = embed_in_process(job, lambda done: progress.update(task, completed=done))
        self.seconds[name] = time.monotonic() - begun
        self.console.print(
            f"{name}: {total} inputs in {self.seconds[name]:.0f} s, the engine's start included"
        )
        return rounds

    def publish(
        self,
        name: str,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        results: dict[str, Any],
        raw: Iterable[dict[str, Any]],
        notes: Sequence[str] = (),
    ) -> None:
        """Print `rows` as a table, and write NAME.jsonl (`raw`), NAME.json (`results`) and NAME.md to `out`.

        The two latter hold machine, versions, command and the seconds of each engine, too.
        """
        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, justify="right" if column != columns[0] else "left")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)
        for note in notes:
            self.console.print(note, highlight=False)
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in raw)
        command = ["orthrus", "bench", *sys.argv[2:]] if sys.argv[1:2] == ["bench"] else sys.argv
        facts = machine.facts()
        # A folder's name says which model it was; its place says something about this machine only.
        model = Path(results["model"]).name if Path(results["model"]).is_absolute() else results["model"]
        document = {
            "benchmark": name,
            "command": shlex.join(command),
            "machine": facts,
            "engine_seconds": self.seconds,
            **results,
            "model": model,
        }
        (self.out / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        lines = [f"# {title}", "", *_markdown(columns, rows), "", *(f"- {note}" for note in notes), ""]
        lines += [f"Command: `{document['command']}`, model `{model}`", ""]
        lines += [f"- {key}: {value}" for key, value in facts.items()]
        lines += ["", "Seconds of each engine, its start included:", ""]
        lines += [f"- {key}: {value:.0f}" for key, value in self.seconds.items()]
        (self.out / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.console.print(f"Written to {self.out}/{name}.jsonl, .json and .md", highlight=False)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (columns, rule, *rows)]
