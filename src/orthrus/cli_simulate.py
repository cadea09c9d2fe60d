"""`orthrus simulate`: simulations on the engine's own policy classes, without an engine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
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
        console.print(f"  - {sentence}", highlight=False)
    console.print(_table(results))
    if rows:
        console.print(_sweep_table(rows))


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
    table = Table(title="Token-budget fill (paper's table 8 in brackets)")
    table.add_column("embeddings")
    for title in (
        "fill, % of budget",
        "generation, req/s",
        "embedding, req/s",
        "steps",
        "ms a step",
        "decodes a step",
    ):
        table.add_column(title, justify="right")
    for result in results:
        figures = (result.fill * 100, result.generation_per_s, result.embedding_per_s)
        paper = PAPER.get(result.embedding)
        cells = [f"{figure:.1f}" for figure in figures]
        if paper is not None:
            cells = [f"{cell} ({theirs})" for cell, theirs in zip(cells, paper, strict=True)]
        counts = (str(result.steps), f"{result.step_ms:.2f}", f"{result.decodes_per_step:.1f}")
        table.add_row(result.embedding, *cells, *counts)
    return table


def _sweep_table(rows: list[SweepRow]) -> Table:
    table = Table(title="One assumption changed at a time: atomic / whole chunks / chunked")
    for title in ("changed", "to"):
        table.add_column(title)
    for title in ("fill, %", "generation, req/s", "embedding, req/s"):
        table.add_column(title, justify="right")
    last = ""
    for row in rows:
        values = ", ".join(f"{name} {value:g}" for name, value in row.changed.items())
        table.add_row(
            "" if row.title == last else row.title,
            values,
            " / ".join(f"{result.fill * 100:.1f}" for result in row.results),
            " / ".join(f"{result.generation_per_s:.1f}" for result in row.results),
            " / ".join(f"{result.embedding_per_s:.1f}" for result in row.results),
        )
        last = row.title
    return table
