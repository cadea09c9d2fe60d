"""`orthrus bench isolation`: one embedding beside streams, one chat behind embeddings, on every topology."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from orthrus.cli_bench_options import Dtype, Out, Repetitions, Resume, Topologies


def isolation(
    path: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="As bench-specs/isolation.yaml.")],
    topology: Topologies = None,
    dtype: Dtype = None,
    repetitions: Repetitions = None,
    out: Out = None,
    resume: Resume = False,
) -> None:
    """Measure whether one kind waits for the other; prints a table and writes isolation.md."""
    from rich.console import Console
    from rich.table import Table

    from orthrus.bench import isolation as figures
    from orthrus.bench.overrides import override
    from orthrus.bench.report import cell
    from orthrus.bench.run import Bench
    from orthrus.bench.session import perform
    from orthrus.bench.spec import SpecError, load_spec

    console = Console()
    try:
        spec = override(load_spec(path), dtype=dtype, repetitions=repetitions, topologies=topology)
        figures.check(spec)
        folder = out or Path("out") / spec.name
        _, failures = perform(spec, folder, console, resume=resume, percentiles=(50.0, 99.0))
    except SpecError as error:
        sys.stderr.write(f"orthrus bench: {error}\n")
        raise typer.Exit(2) from error
    found = figures.rows(figures.collect(Bench(spec, folder)))
    (folder / "isolation.md").write_text("\n".join(figures.markdown(found)) + "\n", encoding="utf-8")
    grid = Table("milliseconds", *found, title="Latency isolation", title_justify="left")
    for name, heading in figures.COLUMNS.items():
        grid.add_row(heading, *(cell(found[each].get(name)) for each in found))
    console.print(grid)
    if failures:
        raise typer.Exit(1)
