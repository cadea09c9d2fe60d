"""`orthrus trace`: read what `orthrus serve --trace-steps FILE` wrote."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Step traces: figures and pictures.", no_args_is_help=True, add_completion=False)
Trace = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A file of --trace-steps.")]


@app.command()
def summary(trace: Trace) -> None:
    """Print budget fill, mix and share error of a trace as JSON; one over no steps is null, with a note."""
    import json

    from orthrus.bench.trace import TraceError, read_trace, summarize

    try:
        typer.echo(json.dumps(asdict(summarize(read_trace(trace))), indent=2))
    except TraceError as error:
        raise typer.BadParameter(str(error)) from error


@app.command()
def plot(
    trace: Trace,
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG or SVG file to write.")],
) -> None:
    """Draw a trace: tokens of each kind per step, credits, queue lengths."""
    from orthrus import extras
    from orthrus.bench.trace import TraceError, read_trace
    from orthrus.bench.trace_plot import plot_trace

    extras.require("matplotlib")
    if output.suffix not in (".png", ".svg"):
        raise typer.BadParameter(f"{output.name}: the picture must be .png or .svg")
    try:
        steps = read_trace(trace)
        if not steps:
            raise TraceError("the trace has no steps")
    except TraceError as error:
        raise typer.BadParameter(str(error)) from error
    plot_trace(steps, output, trace.name)
    typer.echo(output)
