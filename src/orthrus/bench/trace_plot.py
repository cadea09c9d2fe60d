"""A step trace as a picture: stacked tokens per step, credits, and the queues, over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orthrus.bench.trace import Step

KINDS = {"decode": "#4c72b0", "prefill": "#55a868", "embed": "#dd8452"}


def plot_trace(steps: Sequence[Step], path: Path, title: str) -> None:
    """Write the picture to `path` (its suffix chooses PNG or SVG)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (tokens, credit, queues) = pyplot.subplots(
        3, 1, figsize=(11, 8), sharex=True, layout="constrained"
    )
    start = steps[0]["time"]
    times = [step["time"] - start for step in steps]
    tokens.stackplot(
        times,
        *([step["tokens"][kind] for step in steps] for kind in KINDS),
        labels=list(KINDS),
        colors=list(KINDS.values()),
        step="post",
    )
    tokens.set_ylabel("tokens per step")
    _lines(credit, times, steps, "credits", ("credit_embed", "credit_prefill"))
    credit.set_ylabel("credit (tokens)")
    for where, style in (("waiting", "-"), ("running", ":")):
        for kind, colour in (("embed", KINDS["embed"]), ("generate", KINDS["decode"])):
            values = [step[where][kind] for step in steps]
            queues.plot(times, values, style, color=colour, label=f"{where} {kind}")
    queues.set_ylabel("requests")
    queues.set_xlabel("seconds")
    for axis in (tokens, credit, queues):
        if axis.get_legend_handles_labels()[1]:
            axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")  # beside it: hides no peak
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _lines(axis: Any, times: list[float], steps: Sequence[Step], group: str, names: tuple[str, ...]) -> None:
    for name in names:
        if any(name in step[group] for step in steps):
            axis.plot(times, [step[group].get(name, 0.0) for step in steps], label=name)
