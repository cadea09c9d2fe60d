"""Does one kind wait for the other? Figures of four workloads, two alone and two beside the other kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orthrus.bench.records import ClientRun, Record, read_run
from orthrus.bench.report import Key, cell
from orthrus.bench.run import Bench
from orthrus.bench.spec import Spec, SpecError
from orthrus.bench.summary import Figures, spread

EMBED_ALONE, EMBED_BESIDE = "one-embedding-alone", "one-embedding-beside-streams"
CHAT_ALONE, CHAT_BEHIND = "one-chat-alone", "one-chat-behind-embeddings"
WORKLOADS = (EMBED_ALONE, EMBED_BESIDE, CHAT_ALONE, CHAT_BEHIND)
COLUMNS = {
    "embed_alone_ms": "embedding alone",
    "embed_beside_ms": "embedding beside streams",
    "itl_quiet_ms": "ITL, no embedding open",
    "itl_beside_ms": "ITL, embedding open",
    "itl_beside_max_ms": "longest gap, embedding open",
    "ttft_alone_ms": "TTFT alone",
    "ttft_behind_ms": "TTFT behind burst",
}
"""Figures (milliseconds; medians of requests, means of gaps) and their headings."""


def check(spec: Spec) -> None:
    """SpecError unless the spec has the four workloads by name."""
    missing = set(WORKLOADS) - {workload.name for workload in spec.expanded()}
    if missing:
        raise SpecError(f"workloads: an isolation benchmark needs {', '.join(sorted(missing))}")


def figures(workload: str, run: ClientRun) -> Figures:
    """What one run of one of the four workloads tells, by the names of COLUMNS; without failed requests."""
    embeds = [record for record in run.records if record.ok and record.kind == "embed"]
    chats = [record for record in run.records if record.ok and record.kind == "generate"]
    found: Figures = {}
    if workload in (EMBED_ALONE, EMBED_BESIDE) and embeds:
        name = "embed_alone_ms" if workload == EMBED_ALONE else "embed_beside_ms"
        found[name] = _median_ms([(record.end or 0.0) - record.due for record in embeds])
    if workload == EMBED_BESIDE:
        quiet, beside = gaps(chats, embeds)
        if quiet:
            found["itl_quiet_ms"] = float(np.mean(quiet)) * 1e3
        if beside:
            found["itl_beside_ms"] = float(np.mean(beside)) * 1e3
            found["itl_beside_max_ms"] = max(beside) * 1e3
    if workload in (CHAT_ALONE, CHAT_BEHIND) and chats:
        name = "ttft_alone_ms" if workload == CHAT_ALONE else "ttft_behind_ms"
        found[name] = _median_ms([(record.first or 0.0) - record.due for record in chats])
    return found


def gaps(streams: Sequence[Record], embeds: Sequence[Record]) -> tuple[list[float], list[float]]:
    """Seconds between tokens of the streams: those with no embedding open, and those that overlap one.

    An embedding is open from when it was sent to its answer. Gaps before the last stream's first token are
    left out: there the prompts of other streams are computed.
    """
    begin = max((record.tokens[0] for record in streams if record.tokens), default=0.0)
    open_spans = [(record.start, record.end or record.start) for record in embeds]
    quiet: list[float] = []
    beside: list[float] = []
    for stream in streams:
        for earlier, later in zip(stream.tokens, stream.tokens[1:], strict=False):
            if earlier >= begin:
                overlaps = any(start < later and end > earlier for start, end in open_spans)
                (beside if overlaps else quiet).append(later - earlier)
    return quiet, beside


def collect(bench: Bench) -> dict[Key, list[ClientRun]]:
    """The finished runs of a benchmark by topology, workload and load, in the order of their repetitions."""
    runs: dict[Key, list[ClientRun]] = {}
    for _, _, cells in bench.groups:
        for one in cells:
            if bench.store.result(one, bench.spec) is not None:
                runs.setdefault(one.key, []).append(read_run(bench.store.records_path(one)))
    return runs


def rows(runs: Mapping[Key, Sequence[ClientRun]]) -> dict[str, dict[str, dict[str, float]]]:
    """Median, least and greatest of every figure over the repetitions, by topology."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for (topology, workload, _), repetitions in runs.items():
        found = spread([figures(workload, run) for run in repetitions])
        result.setdefault(topology, {}).update(found)
    return result


def markdown(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The lines of a table with a row for each topology, in milliseconds."""
    lines = [
        "| topology | " + " | ".join(f"{heading}, ms" for heading in COLUMNS.values()) + " |",
        "|---|" + "---:|" * len(COLUMNS),
    ]
    for topology, values in found.items():
        lines.append(f"| {topology} | " + " | ".join(cell(values.get(name)) for name in COLUMNS) + " |")
    return lines


def _median_ms(seconds: Sequence[float]) -> float:
    return float(np.median(seconds)) * 1e3
