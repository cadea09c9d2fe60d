"""A benchmark as the command line runs it: progress bars, files, tables on the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from orthrus.bench import machine, plots, report
from orthrus.bench.cells import Cell
from orthrus.bench.report import Table
from orthrus.bench.run import Bench, Outcome
from orthrus.bench.spec import Spec, SpecError


def perform(
    spec: Spec,
    folder: Path,
    console: Console,
    *,
    resume: bool = False,
    ceiling: bool = False,
    metrics: Sequence[str] = ("ttft", "itl", "e2el"),
    percentiles: tuple[float, ...] = (50.0, 99.0),
) -> tuple[Table, list[str]]:
    """Run a spec into `folder`, write its files, print its table; returns figures and failures.

    `ceiling` also measures a device's peak FLOP/s and bandwidth, once the servers have ended.
    SpecError for what cannot be run. SIGTERM ends it as Ctrl-C does: servers first.
    """
    check_plots()
    bench = Bench(spec, folder, percentiles)
    outcome = _run(bench, console, resume)
    if ceiling:
        bench.measure_ceiling()
    results = bench.results()
    found = report.table(results)
    command = "orthrus " + " ".join(sys.argv[1:])
    facts = machine.facts()
    report.write_summary(folder, spec, found, facts, command)
    drawn = plots.draw(folder, spec, found, results)
    path = report.write_report(
        folder, spec, found, facts, command, drawn, outcome.failures, metrics, percentiles
    )
    show(found, console, metrics, percentiles)
    warn_of_short_windows(spec, found, console)
    console.print(f"{outcome.measured} cells measured, {outcome.kept} kept; report: {path}", highlight=False)
    return found, outcome.failures


def run_and_show(
    spec: Spec, folder: Path, console: Console, metrics: Sequence[str], percentiles: tuple[float, ...]
) -> list[str]:
    """Run a spec and print its table, writing no report; returns failures."""
    bench = Bench(spec, folder, percentiles)
    outcome = _run(bench, console, resume=False)
    found = report.table(bench.results())
    show(found, console, metrics, percentiles)
    warn_of_short_windows(spec, found, console)
    return outcome.failures


def _run(bench: Bench, console: Console, resume: bool) -> Outcome:
    with terminated_as_exit(), _progress(bench, console) as (tell, done):
        outcome = bench.run(resume, tell, done)
    for failure in outcome.failures:
        console.print(f"failed: {failure}", style="red", highlight=False)
    return outcome


def check_plots() -> None:
    """SpecError, before hours of measuring, when matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise SpecError("the plots need matplotlib: pip install 'vllm-orthrus[bench]'") from error


def show(found: Table, console: Console, metrics: Sequence[str], percentiles: Sequence[float]) -> None:
    """Print the report's tables, turned so that figures are rows and topologies columns."""
    shown = report.columns(found, metrics, percentiles)
    for workload, load in dict.fromkeys(key[1:] for key in found.rows):
        keys = [key for key in found.rows if key[1:] == (workload, load)]
        grid = RichTable(
            "", *(key[0] for key in keys), title=f"{workload}, load {load}", title_justify="left"
        )
        for figure, heading in shown:
            cells = [report.cell(found.rows[key].get(figure)) for key in keys]
            if any(cells):
                grid.add_row(heading, *cells)
        console.print(grid)


def warn_of_short_windows(spec: Spec, found: Table, console: Console) -> None:
    """Print a line for each cell whose rates its short window makes chance."""
    for sentence in report.short_windows(spec, found):
        console.print(f"too short: {sentence}", style="yellow", highlight=False)


@contextmanager
def _progress(bench: Bench, console: Console) -> Iterator[tuple[Teller, Doer]]:
    total = sum(len(cells) for _, _, cells in bench.groups)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        cells = progress.add_task("cells", total=total)
        now = progress.add_task("", total=1)
        yield Teller(progress, now), Doer(progress, cells)


class Teller:
    """Shows what is going on now."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def __call__(self, what: str, seconds: float, limit: float) -> None:
        """`what` is going on since `seconds`, of `limit` (0: not known)."""
        total = int(limit) if limit else int(seconds) + 1
        self._progress.update(self._task, description=what, completed=int(seconds), total=total)


class Doer:
    """Counts finished cells."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def __call__(self, cell: Cell) -> None:
        """`cell` is finished; where no bar can be drawn, as in a log file, say so in a line."""
        self._progress.update(self._task, advance=1, description=f"cells (last: {cell.stem})")
        if not self._progress.console.is_terminal:
            self._progress.console.print(f"finished: {cell.stem}", highlight=False)


@contextmanager
def terminated_as_exit() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit, so that `with` blocks end what they started."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
