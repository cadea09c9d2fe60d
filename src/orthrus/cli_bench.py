"""`orthrus bench`: mixed workloads against any topology. Flags are named as in `vllm bench serve`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from orthrus import cli_bench_isolation, cli_bench_pooling
from orthrus.bench.overrides import override, parse_goodput
from orthrus.bench.spec import Spec, SpecError, load_spec, parse_spec
from orthrus.cli_bench_options import (
    Burstiness,
    Concurrency,
    DryRun,
    Dtype,
    Goodput,
    Metrics,
    Model,
    Out,
    PeakRates,
    Percentiles,
    Prompts,
    Rate,
    Repetitions,
    Resume,
    Seconds,
    Seed,
    Topologies,
)

app = typer.Typer(help="Benchmarks of generation and embedding together.", no_args_is_help=True)
app.command("pooling")(cli_bench_pooling.pooling)
app.command("pooling-cost")(cli_bench_pooling.pooling_cost)
app.command("prefix-reuse")(cli_bench_pooling.prefix_reuse)
app.command("chunked")(cli_bench_pooling.chunked)
app.command("isolation")(cli_bench_isolation.isolation)


@contextmanager
def told() -> Iterator[None]:
    """Errors in what the user gave, as a message and status 2."""
    try:
        yield
    except SpecError as error:
        sys.stderr.write(f"orthrus bench: {error}\n")
        raise typer.Exit(2) from error


@app.command()
def run(
    path: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="The benchmark.")],
    topology: Topologies = None,
    model: Model = None,
    dtype: Dtype = None,
    seconds: Seconds = None,
    num_prompts: Prompts = None,
    repetitions: Repetitions = None,
    seed: Seed = None,
    max_concurrency: Concurrency = None,
    request_rate: Rate = None,
    burstiness: Burstiness = None,
    goodput: Goodput = None,
    percentile_metrics: Metrics = "ttft,itl,e2el",
    metric_percentiles: Percentiles = "50,95,99",
    out: Out = None,
    resume: Resume = False,
    ceiling: PeakRates = False,
    dry_run: DryRun = False,
) -> None:
    """Measure every workload of a spec on every topology under every load."""
    with told():
        spec = override(
            load_spec(path),
            model=model,
            dtype=dtype,
            seconds=seconds,
            num_prompts=num_prompts,
            repetitions=repetitions,
            seed=seed,
            max_concurrency=max_concurrency,
            request_rate=request_rate,
            burstiness=burstiness,
            goodput=parse_goodput(goodput) if goodput else None,
            topologies=topology,
        )
        metrics, percentiles = chosen(percentile_metrics, metric_percentiles)
        measure(spec, out or Path("out") / spec.name, metrics, percentiles, resume, ceiling, dry_run)


@app.command()
def quick(
    base_url: Annotated[str, typer.Option(help="Server for generations, without /v1.")],
    model: Annotated[str, typer.Option(help="The model's served name.")],
    embed_base_url: Annotated[
        str | None, typer.Option(help="Server for embeddings, if it is another one.")
    ] = None,
    embed_share: Annotated[float, typer.Option(help="Share of embeddings among the requests.")] = 0.5,
    embed_len: Annotated[int, typer.Option(help="Tokens of an embedding.")] = 128,
    input_len: Annotated[int, typer.Option(help="Prompt tokens of a generation.")] = 64,
    output_len: Annotated[int, typer.Option(help="Output tokens of a generation.")] = 32,
    num_prompts: Annotated[int, typer.Option(help="Requests to send, unless --seconds is given.")] = 100,
    seconds: Annotated[float | None, typer.Option(help="Length of the window.")] = None,
    max_concurrency: Annotated[int, typer.Option(help="Requests open at once.")] = 16,
    request_rate: Annotated[float | None, typer.Option(help="Arrivals per second: an open loop.")] = None,
    burstiness: Annotated[float, typer.Option(help="Of an open loop; 1: Poisson.")] = 1.0,
    num_warmups: Annotated[int, typer.Option(help="Requests before, not counted.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of prompts, order and arrivals.")] = 0,
    extra_body: Annotated[
        str | None, typer.Option(help="JSON added to generations (default: greedy, and no early end).")
    ] = None,
    goodput: Goodput = None,
    percentile_metrics: Metrics = "ttft,itl,e2el",
    metric_percentiles: Percentiles = "50,95,99",
    save_result: Annotated[
        bool, typer.Option("--save-result", help="Keep records, summary and plots.")
    ] = False,
    result_dir: Annotated[Path, typer.Option(help="Where --save-result keeps them.")] = Path("out/quick"),
) -> None:
    """Drive servers that are already running with one mixed workload."""
    with told():
        urls = base_url if embed_base_url is None else f"{base_url},{embed_base_url}"
        load: dict[str, Any] = {"type": "closed" if request_rate is None else "open"}
        load |= {"seconds": seconds} if seconds else {"num_prompts": num_prompts}
        load["max_concurrency"] = max_concurrency
        if request_rate is not None:
            load |= {"request_rate": request_rate, "burstiness": burstiness}
        document: dict[str, Any] = {
            "name": "quick",
            "model": model,
            "seed": seed,
            "repetitions": 1,
            "num_warmups": num_warmups,
            "goodput": parse_goodput(goodput or []),
            "workloads": [
                {
                    "name": "mix",
                    "embed_share": embed_share,
                    "embed": {"tokens": embed_len},
                    "generate": {"prompt_tokens": input_len, "output_tokens": output_len},
                }
            ],
            "topologies": [{"topology": f"external:{urls}", "label": "servers"}],
            "load": [load],
        }
        if extra_body is not None:
            document["extra_body"] = json_object(extra_body)
        spec = parse_spec(document, "the flags", Path())
        metrics, percentiles = chosen(percentile_metrics, metric_percentiles)
        if save_result:
            measure(spec, result_dir, metrics, percentiles, resume=False, ceiling=False, dry_run=False)
            return
        from tempfile import TemporaryDirectory

        from orthrus.bench.session import run_and_show

        with TemporaryDirectory() as folder:
            failures = run_and_show(spec, Path(folder), Console(), metrics, percentiles)
    raise typer.Exit(1 if failures else 0)


@app.command()
def paper(
    name: Annotated[str, typer.Argument(help="fig3, fig5, ...; `list` says what there is.")],
    model: Model = None,
    dtype: Dtype = None,
    devices: Annotated[str | None, typer.Option(help="cpu:0,1 or gpu:0,1,2,3.")] = None,
    seconds: Seconds = None,
    num_prompts: Prompts = None,
    repetitions: Repetitions = None,
    seed: Seed = None,
    max_concurrency: Concurrency = None,
    out: Out = None,
    resume: Resume = False,
    ceiling: PeakRates = False,
    dry_run: DryRun = False,
) -> None:
    """Measure one of the paper's tables or figures and print the paper's values beside ours."""
    from orthrus.bench.paper.command import compare, parse_devices
    from orthrus.bench.paper.experiments import ELSEWHERE, EXPERIMENTS, on_devices, spec_of

    if name == "list":
        for known, experiment in EXPERIMENTS.items():
            typer.echo(f"{known:8} {experiment.title}")
        for known, command in ELSEWHERE.items():
            typer.echo(f"{known:8} see: {command}")
        return
    console = Console()
    failures: list[str] = []
    with told():
        if name in ELSEWHERE:
            raise SpecError(f"{name} is measured by: {ELSEWHERE[name]}")
        if name not in EXPERIMENTS:
            raise SpecError(f"no experiment {name!r}; known: {', '.join(EXPERIMENTS)}")
        spec = spec_of(name)
        if devices is not None:
            spec = on_devices(spec, parse_devices(devices))
        spec = override(
            spec,
            dtype=dtype,
            seconds=seconds,
            num_prompts=num_prompts,
            repetitions=repetitions,
            seed=seed,
            max_concurrency=max_concurrency,
        )
        names = (model,) if model else EXPERIMENTS[name].models or (spec.model,)
        for each in names:
            folder = out or Path("out") / spec.name
            if len(names) > 1:
                folder = folder / each
            chosen_spec = override(spec, model=each)
            if dry_run:
                describe(chosen_spec, folder, console)
            else:
                failures += compare(name, chosen_spec, folder, console, resume, ceiling)
    if failures:
        raise typer.Exit(1)


@app.command()
def validate(path: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="The benchmark.")]) -> None:
    """Check a spec, and print it with every default and every swept workload written out."""
    with told():
        spec = load_spec(path)
        document = spec.model_dump(mode="json")
        document["workloads"] = [workload.model_dump(mode="json") for workload in spec.expanded()]
        typer.echo(json.dumps(document, indent=2))


def measure(
    spec: Spec,
    folder: Path,
    metrics: list[str],
    percentiles: tuple[float, ...],
    resume: bool,
    ceiling: bool,
    dry_run: bool,
) -> None:
    """Run a spec, or say what it would run; ends with status 1 when a part of it failed."""
    from orthrus.bench.session import perform

    console = Console()
    if dry_run:
        describe(spec, folder, console)
        return
    _, failures = perform(
        spec, folder, console, resume=resume, ceiling=ceiling, metrics=metrics, percentiles=percentiles
    )
    if failures:
        raise typer.Exit(1)


def describe(spec: Spec, folder: Path, console: Console) -> None:
    """Print the servers of each topology and the cells, in order."""
    from orthrus.bench.run import Bench

    bench = Bench(spec, folder)
    for name, plan in bench.plans():
        console.print(f"[bold]{name}[/bold]")
        for server in plan.plans:
            settings = " ".join(f"{key}={value}" for key, value in server.env.items())
            console.print(f"  {settings} {shlex.join(server.command)}", highlight=False, soft_wrap=True)
        for role in ("embed", "generate", "prefill"):
            if getattr(plan, role):
                console.print(f"  {role}: {' '.join(getattr(plan, role))}", highlight=False)
    cells = [cell for _, _, group in bench.groups for cell in group]
    console.print(f"{len(cells)} cells, in this order:")
    for cell in cells:
        state = "" if bench.store.result(cell, spec) is None else " (finished)"
        console.print(f"  {cell.stem}{state}", highlight=False, soft_wrap=True)


def json_object(text: str) -> dict[str, Any]:
    """The JSON object of --extra-body; SpecError for anything else."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError(f"--extra-body: not JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise SpecError(f"--extra-body {text}: must be a JSON object")
    return value


def chosen(metrics: str, percentiles: str) -> tuple[list[str], tuple[float, ...]]:
    """The lists behind --percentile-metrics and --metric-percentiles; SpecError for what is unknown."""
    from orthrus.bench.report import METRICS

    names = [name.strip() for name in metrics.split(",") if name.strip()]
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise SpecError(f"--percentile-metrics: {', '.join(unknown)} unknown; allowed: {', '.join(METRICS)}")
    try:
        values = tuple(float(value) for value in percentiles.split(","))
    except ValueError as error:
        raise SpecError(f"--metric-percentiles {percentiles}: must be numbers, as in 50,95,99") from error
    if not all(0 <= value <= 100 for value in values):
        raise SpecError(f"--metric-percentiles {percentiles}: each must be within 0 to 100")
    return names, values
