"""Options that several `orthrus bench` commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Seconds = Annotated[float | None, typer.Option(help="Length of every window, in place of the spec's.")]
Prompts = Annotated[int | None, typer.Option(help="Requests of every window, in place of the spec's.")]
Repetitions = Annotated[int | None, typer.Option(help="Repetitions, interleaved over the topologies.")]
Seed = Annotated[int | None, typer.Option(help="Seed of prompts, order and arrivals.")]
Model = Annotated[str | None, typer.Option(help="Model in place of the spec's.")]
Dtype = Annotated[str | None, typer.Option(help="The engines' dtype in place of the spec's.")]
Concurrency = Annotated[int | None, typer.Option(help="Clients of every closed load.")]
Rate = Annotated[float | None, typer.Option(help="Arrivals per second of every open load.")]
Burstiness = Annotated[float | None, typer.Option(help="Shape of the gaps' gamma distribution; 1: Poisson.")]
Goodput = Annotated[
    list[str] | None,
    typer.Option(help="Goal KEY:MILLISECONDS; keys ttft, tpot, e2el, embed_e2el. May be repeated."),
]
Topologies = Annotated[
    list[str] | None, typer.Option(help="Only these of the spec's topologies, by label. May be repeated.")
]
Metrics = Annotated[str, typer.Option(help="Generation metrics to show: of ttft, tpot, itl, e2el.")]
Percentiles = Annotated[str, typer.Option(help="Percentiles to compute and show.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the results (default: out/NAME).")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep finished cells and measure the others.")]
PeakRates = Annotated[
    bool, typer.Option("--ceiling", help="Also measure a device's peak rates, and report the parts used.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would run; start, fetch and write nothing.")
]
