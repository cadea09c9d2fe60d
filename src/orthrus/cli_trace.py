"""`orthrus trace`: read what `orthrus serve --trace-steps FILE` wrote."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orthrus.bench.trace import Step

app = typer.Typer(help="Step traces: figures and pictures.", no_args_is_help=True, add_completion=False)
Trace = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A file of --trace-steps.")]


@app.command()
def summary(trace: Trace) -> None:
    """Print budget fill, mix and share error of a trace as JSON; one over no steps is null, with a note."""
    import json

    from orthrus.bench.trace import summarize

    typer.echo(json.dumps(asdict(summarize(_steps(trace))), indent=2))


@app.command()
def plot(
    trace: Trace,
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG or SVG file to write.")],
) -> None:
    """Draw a trace: tokens of each kind per step, credits, queue lengths."""
    from orthrus import extras
    from orthrus.bench.trace_plot import plot_trace

    extras.require("matplotlib")
    if output.suffix not in (".png", ".svg"):
        raise typer.BadParameter(f"{output.name}: the picture must be .png or .svg")
    if not output.resolve().parent.is_dir():
        raise typer.BadParameter(f"{output}: its folder does not exist")
    plot_trace(_steps(trace), output, trace.name)
    typer.echo(output)


def _steps(trace: Path) -> list[Step]:
    """The steps of a trace, at least one; what was left out goes to stderr."""
    from orthrus.bench.trace import TraceError, read_trace

    try:
        steps = read_trace(trace, warn=lambda message: typer.echo(message, err=True))
    except TraceError as error:
        raise typer.BadParameter(str(error)) from error
    if not steps:
        raise typer.BadParameter(f"{trace.name}: the trace has no steps")
    return steps
