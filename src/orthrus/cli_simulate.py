"""`orthrus simulate`: simulations on the engine's own policy classes, without an engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table

from orthrus.sim.fill import FillResult, simulate
from orthrus.sim.fill_sweep import SweepRow, sweep
from orthrus.sim.scenario import Embedding, FillScenario, ScenarioError

app = typer.Typer(help="Simulations on the engine's own scheduling policies.", no_args_is_help=True)

PAPER = {
    Embedding.ATOMIC: (8.8, 93.3, 25.5),
    Embedding.WHOLE_CHUNKS: (85.7, 93.3, 26.9),
}
"""Fill in percent, generation and embedding requests/s of the paper's table 8."""


class Figure(NamedTuple):
    """A figure of the paper's table 8: its heading, and a result's value as text."""

    title: str
    of: Callable[[FillResult], str]


FIGURES = (
    Figure("fill, %", lambda result: f"{result.fill * 100:.1f}"),
    Figure("generation, req/s", lambda result: f"{result.generation_per_s:.1f}"),
    Figure("embedding, req/s", lambda result: f"{result.embedding_per_s:.1f}"),
)
UNLIMITED = 10_000
DEFAULTS = FillScenario()


@app.callback()
def simulations() -> None:
    """Simulations on the engine's own scheduling policies."""


@app.command()
def fill(
    budget: Annotated[int, typer.Option(help="Token budget of a step.")] = DEFAULTS.budget,
    chunk: Annotated[int, typer.Option(help="Most tokens of an embedding chunk.")] = DEFAULTS.chunk,
    generation_clients: Annotated[
        int, typer.Option(help="Clients that generate.")
    ] = DEFAULTS.generation_clients,
    embedding_clients: Annotated[int, typer.Option(help="Clients that embed.")] = DEFAULTS.embedding_clients,
    period: Annotated[
        float, typer.Option(help="Seconds between two requests of a generation client.")
    ] = DEFAULTS.period_s,
    prompt_tokens: Annotated[
        int, typer.Option(help="Prompt tokens per generation.")
    ] = DEFAULTS.prompt_tokens,
    output_tokens: Annotated[
        int, typer.Option(help="Output tokens per generation.")
    ] = DEFAULTS.output_tokens,
    embed_min: Annotated[int, typer.Option(help="Shortest embedding, tokens.")] = DEFAULTS.embed_min_tokens,
    embed_max: Annotated[int, typer.Option(help="Longest embedding, tokens.")] = DEFAULTS.embed_max_tokens,
    step_us: Annotated[float, typer.Option(help="Fixed cost of a step, microseconds.")] = DEFAULTS.step_s
    * 1e6,
    token_us: Annotated[float, typer.Option(help="Cost of a token, microseconds.")] = DEFAULTS.token_s * 1e6,
    window: Annotated[float, typer.Option(help="Seconds of simulated time to count.")] = DEFAULTS.window_s,
    seed: Annotated[int, typer.Option(help="Seed of phases and lengths.")] = DEFAULTS.seed,
    run_sweep: Annotated[bool, typer.Option("--sweep", help="Also change one assumption at a time.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Token-budget fill with atomic and with chunked embeddings (the paper's table 8)."""
    try:
        scenario = FillScenario(
            budget=budget,
            chunk=chunk,
            generation_clients=generation_clients,
            embedding_clients=embedding_clients,
            period_s=period,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            embed_min_tokens=embed_min,
            embed_max_tokens=embed_max,
            step_s=step_us * 1e-6,
            token_s=token_us * 1e-6,
            window_s=window,
            seed=seed,
        )
        results = [simulate(scenario, embedding) for embedding in Embedding]
        rows = list(sweep(scenario)) if run_sweep else []
    except ScenarioError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        typer.echo(json.dumps(_document(scenario, results, rows), indent=2))
        return
    console = Console()
    console.print("Assumptions:")
    for sentence in scenario.assumptions():
        console.print(f"  - {sentence}", highlight=False, soft_wrap=not console.is_terminal)
    _show(console, _table(results))
    if rows:
        _show(console, _sweep_table(rows))


def _show(console: Console, table: Table) -> None:
    """Print a table: in a narrow terminal with its cells folded, into a file or pipe at its full width."""
    if not console.is_terminal:
        width = Measurement.get(console, console.options.update(max_width=UNLIMITED), table).maximum
        console = Console(width=width, file=console.file)
    console.print(table)


def _document(scenario: FillScenario, results: list[FillResult], rows: list[SweepRow]) -> dict[str, Any]:
    keys = ("fill_percent", "generation_per_s", "embedding_per_s")
    document: dict[str, Any] = {
        "scenario": asdict(scenario),
        "assumptions": scenario.assumptions(),
        "paper": {embedding: dict(zip(keys, figures, strict=True)) for embedding, figures in PAPER.items()},
        "results": [asdict(result) for result in results],
    }
    if rows:
        document["sweep"] = [asdict(row) for row in rows]
    return document


def _table(results: list[FillResult]) -> Table:
    """One row for each figure: so that the table is as narrow as its three kinds of embeddings."""
    table = Table(title="Token-budget fill (paper's table 8 in brackets)")
    _column(table, "embeddings", "left")
    for result in results:
        _column(table, result.embedding)
    for row, figure in enumerate(FIGURES):
        cells = []
        for result in results:
            paper = PAPER.get(result.embedding)
            cells.append(figure.of(result) + (f" ({paper[row]})" if paper is not None else ""))
        table.add_row(figure.title, *cells)
    for title, values in (
        ("steps", [str(result.steps) for result in results]),
        ("ms a step", [f"{result.step_ms:.2f}" for result in results]),
        ("decodes a step", [f"{result.decodes_per_step:.1f}" for result in results]),
    ):
        table.add_row(title, *values)
    return table


def _sweep_table(rows: list[SweepRow]) -> Table:
    table = Table(title="One assumption changed at a time: atomic / whole chunks / chunked")
    _column(table, "changed", "left")
    _column(table, "to", "left")
    for figure in FIGURES:
        _column(table, figure.title)
    last = ""
    for row in rows:
        values = ", ".join(f"{name} {value:g}" for name, value in row.changed.items())
        cells = [" / ".join(map(figure.of, row.results)) for figure in FIGURES]
        table.add_row("" if row.title == last else row.title, values, *cells)
        last = row.title
    return table


def _column(table: Table, title: str, justify: JustifyMethod = "right") -> None:
    table.add_column(title, justify=justify, overflow="fold")
