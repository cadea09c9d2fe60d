"""`orthrus bench paper NAME`: run one experiment and set its values beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from orthrus.bench.paper.experiments import EXPERIMENTS, SETUP
from orthrus.bench.paper.view import Line, View
from orthrus.bench.report import short_windows
from orthrus.bench.session import perform
from orthrus.bench.spec import Devices, Spec, SpecError


def parse_devices(text: str) -> Devices:
    """`cpu:0,1` or `gpu:0,1,2,3`; SpecError otherwise."""
    kind, _, ids = text.partition(":")
    numbers = ids.split(",")
    if kind not in ("cpu", "gpu") or not all(number.isdigit() for number in numbers):
        raise SpecError(f"--devices {text}: must be cpu:N,N,... or gpu:N,N,...")
    if len(set(numbers)) != len(numbers):
        raise SpecError(f"--devices {text}: each device once")
    return Devices.model_validate({"kind": kind, "ids": [int(number) for number in numbers]})


def compare(name: str, spec: Spec, folder: Path, console: Console, resume: bool, ceiling: bool) -> list[str]:
    """Run a spec of the experiment `name` and write comparison.md below `folder`; returns failures."""
    experiment = EXPERIMENTS[name]
    found, failures = perform(
        spec, folder, console, resume=resume, ceiling=ceiling, percentiles=(50.0, 95.0, 99.0)
    )
    lines = experiment.lines(View(found))
    grid = RichTable("quantity", "paper", "ours", title=f"{name}: {experiment.title} ({spec.model})")
    for line in lines:
        grid.add_row(line.quantity, line.paper, line.ours)
    console.print(grid)
    differs = (*SETUP, *experiment.differs, *short_windows(spec, found))
    for sentence in differs:
        console.print(f"  - {sentence}", highlight=False)
    path = folder / "comparison.md"
    path.write_text(document(f"{name}: {experiment.title}, {spec.model}", lines, differs), encoding="utf-8")
    return failures


def document(title: str, lines: Sequence[Line], differs: Sequence[str]) -> str:
    """The comparison as Markdown."""
    rows = [f"| {line.quantity} | {line.paper} | {line.ours} |" for line in lines]
    notes = [f"- {sentence}" for sentence in differs]
    return "\n".join(
        [
            f"# {title}",
            "",
            "| quantity | paper | ours |",
            "|---|---|---|",
            *rows,
            "",
            "What differs:",
            "",
            *notes,
            "",
        ]
    )
