"""Results as files: summary.json, summary.csv and report.md."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orthrus.bench.spec import Closed, Spec
from orthrus.bench.summary import spread

Key = tuple[str, str, str]
Spread = dict[str, dict[str, float]]

BASE_COLUMNS = (
    ("requests_per_s", "req/s"),
    ("work_per_s", "work/s"),
    ("goodput_requests_per_s", "goodput req/s"),
    ("embed_requests_per_s", "embed req/s"),
    ("generate_requests_per_s", "gen req/s"),
    ("generate_output_tokens_per_s", "out tok/s"),
    ("sessions_per_s", "sessions/s"),
)
COST_COLUMNS = (
    ("device_utilisation", "utilisation"),
    ("flop_utilisation", "FLOP use"),
    ("bandwidth_utilisation", "bandwidth use"),
    ("tokens_per_step", "tokens/step"),
    ("preemptions", "preemptions"),
    ("servers_pss_gib", "PSS GiB"),
    ("client_cpu_share", "client cores"),
    ("foreign_cores", "others' cores"),
    ("errors", "errors"),
)
METRICS = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True)
class Table:
    """Medians with spread over repetitions, by (topology, workload, load), in the spec's order."""

    rows: dict[Key, Spread]

    def median(self, key: Key, figure: str) -> float | None:
        """The median of a figure, or None where there is none."""
        found = self.rows.get(key, {}).get(figure)
        return found["median"] if found else None


def table(results: Mapping[Key, Sequence[Mapping[str, Any]]]) -> Table:
    """Spread of every figure over the repetitions of each cell."""
    rows = {}
    for key, cells in results.items():
        figures = []
        for cell in cells:
            values = dict(cell["figures"])
            seconds = values["seconds"] or 1.0
            values["client_cpu_share"] = values["client_cpu_seconds"] / seconds
            if "machine_busy_cores" in values:
                ours = values["server_busy_cores"] + values["client_cpu_share"]
                values["foreign_cores"] = max(values["machine_busy_cores"] - ours, 0.0)
            values["errors"] = values.get("embed_errors", 0) + values.get("generate_errors", 0)
            figures.append(values)
        rows[key] = spread(figures)
    return Table(rows)


def columns(found: Table, metrics: Sequence[str], percentiles: Sequence[float]) -> list[tuple[str, str]]:
    """(figure, heading) of the report's columns that any row has; `metrics` among METRICS."""
    latencies = []
    for percentile in percentiles:
        if "e2el" in metrics:
            latencies.append((f"embed_e2el_p{percentile:g}_ms", f"embed p{percentile:g} ms"))
        for metric in metrics:
            latencies.append((f"generate_{metric}_p{percentile:g}_ms", f"gen {metric} p{percentile:g} ms"))
        latencies.append((f"session_e2el_p{percentile:g}_ms", f"session p{percentile:g} ms"))
    wanted = [*BASE_COLUMNS, *latencies, *COST_COLUMNS]
    return [column for column in wanted if any(column[0] in row for row in found.rows.values())]


def write_summary(folder: Path, spec: Spec, found: Table, machine: Mapping[str, str], command: str) -> None:
    """summary.json (everything) and summary.csv (a row for each cell and figure)."""
    document = {
        "name": spec.name,
        "command": command,
        "machine": dict(machine),
        "spec": spec.model_dump(mode="json"),
        "cells": [
            {"topology": topology, "workload": workload, "load": load, "figures": figures}
            for (topology, workload, load), figures in found.rows.items()
        ],
    }
    (folder / "summary.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    with (folder / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["topology", "workload", "load", "figure", "median", "min", "max", "n"])
        for key, figures in found.rows.items():
            for name, values in figures.items():
                writer.writerow([*key, name, *(values[column] for column in ("median", "min", "max", "n"))])


def short_windows(spec: Spec, found: Table) -> list[str]:
    """A sentence for each closed-loop cell whose window has no time for two requests of a client, on average.

    Requests of one batch end together, and one batch more or less changes the rates of such a window by much.
    """
    timed = {load.label(): load.seconds for load in spec.load if isinstance(load, Closed)}
    sentences = []
    for topology, workload, load in found.rows:
        seconds = timed.get(load)
        means = [
            found.median((topology, workload, load), f"{kind}_e2el_mean_ms") for kind in ("embed", "generate")
        ]
        latency = max((mean for mean in means if mean is not None), default=0.0) / 1e3
        if seconds and 2 * latency > seconds:
            sentences.append(
                f"{workload}, {topology}, load {load}: {seconds:g} s are less than two requests of a client "
                f"({number(latency)} s each): chance decides its rates, take --seconds {10 * latency:.0f}"
            )
    return sentences


def write_report(
    folder: Path,
    spec: Spec,
    found: Table,
    machine: Mapping[str, str],
    command: str,
    plots: Sequence[str],
    failures: Sequence[str],
    metrics: Sequence[str],
    percentiles: Sequence[float],
) -> Path:
    """report.md: command, machine, seeds, tables, plots, failures and the spec; returns its path."""
    seeds = [spec.seed + repetition for repetition in range(spec.repetitions)]
    lines = [
        f"# {spec.name}",
        "",
        f"Command: `{command}`",
        "",
        f"Model: `{spec.model}`, {spec.server.dtype}. Repetitions: {spec.repetitions}, interleaved over the "
        f"topologies; seeds {seeds}. KV cache: {spec.server.kv_cache_gib:g} GiB on each of the devices "
        f"{spec.devices.kind} {spec.devices.ids}, shared by the servers on it. Routing: {spec.routing}.",
        "",
        "| machine | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in machine.items()),
    ]
    shown = columns(found, metrics, percentiles)
    for load in dict.fromkeys(key[2] for key in found.rows):
        lines += ["", f"## Load {load}", "", *markdown(found, load, shown)]
    lines += [
        "",
        "Cells are medians, with least to greatest over the repetitions where there is more than one.",
    ]
    if short := short_windows(spec, found):
        lines += ["", "## Windows that are too short", "", *(f"- {sentence}" for sentence in short)]
    for plot in plots:
        lines += ["", f"![{plot}]({plot}.png)"]
    if failures:
        lines += ["", "## Failures", "", *(f"- {failure.splitlines()[0]}" for failure in failures)]
    document = yaml.safe_dump(spec.model_dump(mode="json", exclude_defaults=True), sort_keys=False)
    lines += ["", "## Spec", "", "```yaml", document.rstrip(), "```", ""]
    path = folder / "report.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def markdown(found: Table, load: str, shown: Sequence[tuple[str, str]]) -> list[str]:
    """The lines of a Markdown table of one load."""
    lines = [
        "| workload | topology | " + " | ".join(heading for _, heading in shown) + " |",
        "|---|---|" + "---:|" * len(shown),
    ]
    rows = [(key, figures) for key, figures in found.rows.items() if key[2] == load]
    workloads = list(dict.fromkeys(key[1] for key, _ in rows))
    for (topology, workload, _), figures in sorted(rows, key=lambda row: workloads.index(row[0][1])):
        cells = [cell(figures.get(name)) for name, _ in shown]
        lines.append(f"| {workload} | {topology} | " + " | ".join(cells) + " |")
    return lines


def cell(values: Mapping[str, float] | None) -> str:
    """Median, and the range where several repetitions differ."""
    if values is None:
        return ""
    median, low, high = (number(values[key]) for key in ("median", "min", "max"))
    return median if low == high else f"{median} ({low}–{high})"


def number(value: float) -> str:
    """Three significant digits, whole numbers from 100 on."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
