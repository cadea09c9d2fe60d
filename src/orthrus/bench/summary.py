"""From a client run's records to figures: rates in the window, latencies, goodput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orthrus.bench.records import ClientRun, Record
from orthrus.bench.spec import Work

PERCENTILES = (50.0, 95.0, 99.0)
KINDS = ("embed", "generate")
Figures = dict[str, float]


def summarise(
    run: ClientRun,
    goodput: Mapping[str, float] | None = None,
    work: Work | None = None,
    percentiles: Sequence[float] = PERCENTILES,
) -> Figures:
    """Flat figures of one run. Rates are per second of the windows, latencies in milliseconds.

    A request counts in a rate when it ended within a window, a token when it arrived within one. Latencies
    are those of every request that was answered in full, also after its window (those that waited longest
    would otherwise be forgotten). `e2el` and `ttft` count from `due`, so that a late client hides no waiting.
    `itl` is the gap between two chunks of a stream, over all streams; `tpot` the mean gap of one stream.
    `work_per_s` weighs every embedded, prefilled and decoded token with `work`.
    """
    work = work or Work()
    seconds = sum(end - begin for begin, end in run.windows)
    figures: Figures = {"seconds": seconds, "client_cpu_seconds": run.cpu_seconds}
    figures["client_late_p99_ms"] = run.late_p99 * 1e3
    for kind in KINDS:
        records = [record for record in run.records if record.kind == kind]
        if records:
            figures |= {f"{kind}_{key}": value for key, value in _kind(records, run, percentiles).items()}
    finished = [record for record in run.records if record.ok and _inside(record.end, run)]
    figures["requests_per_s"] = _rate(len(finished), seconds)
    embedded = sum(record.tokens_in for record in finished if record.kind == "embed")
    generations = [record for record in run.records if record.kind == "generate"]
    prefilled = sum(record.tokens_in for record in generations if _inside(record.first, run))
    decoded = sum(_inside(time, run) for record in generations for time in record.tokens)
    figures["embedded_tokens_per_s"] = _rate(embedded, seconds)
    figures["prefilled_tokens_per_s"] = _rate(prefilled, seconds)
    figures["decoded_tokens_per_s"] = _rate(decoded, seconds)
    amount = work.embed_token * embedded + work.prefill_token * prefilled + work.decode_token * decoded
    figures["work_per_s"] = _rate(amount, seconds)
    if goodput:
        good = sum(is_good(record, goodput) for record in finished)
        figures["goodput_requests_per_s"] = _rate(good, seconds)
    return figures | _sessions(run, percentiles) | _phases(run)


def _kind(records: list[Record], run: ClientRun, percentiles: Sequence[float]) -> Figures:
    seconds = sum(end - begin for begin, end in run.windows)
    finished = [record for record in records if record.ok and _inside(record.end, run)]
    answered = [record for record in records if record.ok]
    figures: Figures = {
        "requests": len(finished),
        "errors": sum(bool(record.error) for record in records),
        "requests_per_s": _rate(len(finished), seconds),
        "input_tokens_per_s": _rate(sum(record.tokens_in for record in finished), seconds),
    }
    figures |= distribution("e2el", [_latency(record) for record in answered], percentiles)
    if records[0].kind == "generate":
        arrived = sum(_inside(time, run) for record in records for time in record.tokens)
        figures["output_tokens_per_s"] = _rate(arrived, seconds)
        figures |= distribution("ttft", [_ttft(record) for record in answered], percentiles)
        gaps = [gap for record in answered for gap in np.diff(record.tokens).tolist()]
        figures |= distribution("itl", gaps, percentiles)
        figures |= distribution(
            "tpot", [tpot for r in answered if (tpot := _tpot(r)) is not None], percentiles
        )
    return figures


def distribution(name: str, seconds: Sequence[float], percentiles: Sequence[float]) -> Figures:
    """Mean, maximum and percentiles (linear between samples, as numpy and vLLM have it), in milliseconds."""
    if not seconds:
        return {}
    values = np.asarray(seconds) * 1e3
    figures = {f"{name}_mean_ms": float(values.mean()), f"{name}_max_ms": float(values.max())}
    for percentile in percentiles:
        figures[f"{name}_p{percentile:g}_ms"] = float(np.percentile(values, percentile))
    return figures


def is_good(record: Record, goals: Mapping[str, float]) -> bool:
    """Whether a request was answered within every goal of its kind (milliseconds).

    ttft, tpot and e2el are goals of generations, embed_e2el of embeddings; a single token has a tpot of 0.
    """
    if not record.ok:
        return False
    reached: dict[str, float] = {"embed_e2el": _latency(record)}
    if record.kind == "generate":
        reached = {"ttft": _ttft(record), "tpot": _tpot(record) or 0.0, "e2el": _latency(record)}
    return all(reached[key] * 1e3 <= goal for key, goal in goals.items() if key in reached)


def _sessions(run: ClientRun, percentiles: Sequence[float]) -> Figures:
    parts: dict[int, list[Record]] = {}
    for record in run.records:
        if record.session is not None:
            parts.setdefault(record.session, []).append(record)
    if not parts:
        return {}
    rounds = max(len(records) for records in parts.values())
    whole = [
        records
        for records in parts.values()
        if len(records) == rounds and all(record.ok for record in records)
    ]
    ends = [max(record.end or 0.0 for record in records) for records in whole]
    latencies = [
        end - min(record.due for record in records) for end, records in zip(ends, whole, strict=True)
    ]
    seconds = sum(end - begin for begin, end in run.windows)
    figures = {"sessions_per_s": _rate(sum(_inside(end, run) for end in ends), seconds)}
    return figures | distribution("session_e2el", latencies, percentiles)


def _phases(run: ClientRun) -> Figures:
    if len(run.windows) < 2:
        return {}
    figures = {}
    for phase, (begin, end) in enumerate(run.windows):
        done = [record.end for record in run.records if record.phase == phase and record.ok]
        inside = sum(moment is not None and begin <= moment <= end for moment in done)
        figures[f"phase{phase}_seconds"] = end - begin
        figures[f"phase{phase}_requests_per_s"] = _rate(inside, end - begin)
    return figures


def spread(repetitions: Sequence[Figures]) -> dict[str, dict[str, float]]:
    """Median, least and greatest of every figure over repetitions of one cell."""
    keys = dict.fromkeys(key for figures in repetitions for key in figures)
    result: dict[str, dict[str, float]] = {}
    for key in keys:
        values: list[Any] = [figures[key] for figures in repetitions if key in figures]
        result[key] = {
            "median": float(np.median(values)),
            "min": float(min(values)),
            "max": float(max(values)),
            "n": len(values),
        }
    return result


def _inside(moment: float | None, run: ClientRun) -> bool:
    return moment is not None and any(begin <= moment <= end for begin, end in run.windows)


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _latency(record: Record) -> float:
    assert record.end is not None
    return record.end - record.due


def _ttft(record: Record) -> float:
    assert record.first is not None
    return record.first - record.due


def _tpot(record: Record) -> float | None:
    if len(record.tokens) < 2:
        return None
    return (record.tokens[-1] - record.tokens[0]) / (len(record.tokens) - 1)
