"""Plots of a benchmark's results, each as PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orthrus.bench.report import Key, Table
from orthrus.bench.spec import Spec

LATENCIES = (
    ("embed_e2el_p99_ms", "embedding latency p99, ms"),
    ("generate_ttft_p99_ms", "time to first token p99, ms"),
    ("generate_itl_p99_ms", "inter-token latency p99, ms"),
)
RATES = (
    ("requests_per_s", "all requests/s"),
    ("embed_requests_per_s", "embeddings/s"),
    ("generate_requests_per_s", "generations/s"),
)


def draw(
    folder: Path, spec: Spec, found: Table, results: Mapping[Key, Sequence[Mapping[str, Any]]]
) -> list[str]:
    """Draw what the results allow; returns the plots' names without suffix. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "orthrus"  # the same results give the same file
    names = []
    for load in dict.fromkeys(key[2] for key in found.rows):
        for title, figures in (("throughput", RATES), ("latency", LATENCIES)):
            names += _panels(folder, spec, found, load, title, figures)
        names += _utilisation(folder, results, load)
    return names


def _panels(
    folder: Path, spec: Spec, found: Table, load: str, title: str, figures: Sequence[tuple[str, str]]
) -> list[str]:
    """One panel for each figure, one line (or set of bars) for each topology."""
    from matplotlib import pyplot

    shown = [f for f in figures if any(f[0] in row for key, row in found.rows.items() if key[2] == load)]
    if not shown:
        return []
    places = {workload.name: workload.x for workload in spec.expanded()}
    workloads = [name for name in places if any(key[1:] == (name, load) for key in found.rows)]
    numeric = len(workloads) > 1 and all(places[name] is not None for name in workloads)
    topologies = list(dict.fromkeys(key[0] for key in found.rows if key[2] == load))
    drawing, axes = pyplot.subplots(
        1, len(shown), figsize=(4.6 * len(shown), 3.6), squeeze=False, layout="constrained"
    )
    for axis, (figure, label) in zip(axes[0], shown, strict=True):
        for order, topology in enumerate(topologies):
            points = [
                (place, workload, found.rows[topology, workload, load][figure])
                for place, workload in enumerate(workloads)
                if figure in found.rows.get((topology, workload, load), {})
            ]
            middle = [values["median"] for _, _, values in points]
            errors = [
                [values["median"] - values["min"] for _, _, values in points],
                [values["max"] - values["median"] for _, _, values in points],
            ]
            if numeric:
                xs = [places[workload] for _, workload, _ in points]
                axis.errorbar(xs, middle, yerr=errors, marker="o", capsize=3, label=topology)
            else:
                width = 0.8 / len(topologies)
                xs = [place - 0.4 + width * (order + 0.5) for place, _, _ in points]
                axis.bar(xs, middle, width, yerr=errors, capsize=2, label=topology)
        if not numeric:
            axis.set_xticks(range(len(workloads)), workloads, rotation=20)
        axis.set_xlabel(spec.x_label or "workload")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize="small")
    name = f"{title}-{load}"
    _save(folder, name, drawing)
    pyplot.close(drawing)
    return [name]


def _utilisation(folder: Path, results: Mapping[Key, Sequence[Mapping[str, Any]]], load: str) -> list[str]:
    """Utilisation of each device over time, first repetition, a panel for each topology and workload."""
    from matplotlib import pyplot

    chosen = {
        key: cells[0] for key, cells in results.items() if key[2] == load and cells[0]["usage"]["devices"]
    }
    if not chosen:
        return []
    workloads = list(dict.fromkeys(key[1] for key in chosen))
    topologies = list(dict.fromkeys(key[0] for key in chosen))
    drawing, axes = pyplot.subplots(
        len(topologies),
        len(workloads),
        figsize=(3.2 * len(workloads), 1.9 * len(topologies)),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for row, topology in enumerate(topologies):
        for column, workload in enumerate(workloads):
            axis = axes[row][column]
            axis.set_title(f"{topology}, {workload}", fontsize="small")
            axis.set_ylim(0, 1.05)
            cell = chosen.get((topology, workload, load))
            for use in cell["usage"]["devices"] if cell else ():
                xs, ys = [point[0] for point in use["series"]], [point[1] for point in use["series"]]
                axis.plot(xs, ys, label=f"device {use['device']}")
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawing.legend(handles, labels, fontsize="x-small", loc="outside right upper")
    axes[-1][0].set_xlabel("s")
    axes[0][0].set_ylabel("utilisation")
    name = f"utilisation-{load}"
    _save(folder, name, drawing)
    pyplot.close(drawing)
    return [name]


def _save(folder: Path, name: str, drawing: Any) -> None:
    drawing.savefig(folder / f"{name}.png", dpi=140)
    drawing.savefig(folder / f"{name}.svg", metadata={"Date": None})
