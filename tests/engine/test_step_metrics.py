"""Step metrics are written in intervals, and an idle engine owes none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from orthrus.engine import step_metrics
from orthrus.engine.step_metrics import INTERVAL_S, StepMetrics
from orthrus.engine.steps import StepRecord
from orthrus.policy.work import Kind, Refusal


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(step_metrics, "time", clock)
    return clock


@pytest.fixture
def metrics(clock: Clock) -> Iterator[StepMetrics]:
    known = set(REGISTRY._collector_to_names)
    yield StepMetrics()
    for collector in set(REGISTRY._collector_to_names) - known:
        REGISTRY.unregister(collector)


def run(metrics: StepMetrics, embed: int = 0, prefill: int = 0, decode: int = 0, **more: Any) -> None:
    """A step of these tokens and a budget of 100, counted and, if it is time, written."""
    scheduled = {Kind.EMBED: embed, Kind.PREFILL: prefill, Kind.DECODE: decode}
    total = embed + prefill + decode
    refused = more.get("refused", {})
    metrics.count(scheduled, total / 100, refused)
    if metrics.is_due(total):
        fields = {
            "remaining": {},
            "running": {},
            "waiting": {},
            "credits": {},
            "refused": {},
            "discarded": 0,
        } | more
        metrics.write(StepRecord(time=0.0, mix="", budget=100, tokens=scheduled, **fields))


def tokens(kind: str) -> float | None:
    return REGISTRY.get_sample_value("orthrus:scheduled_tokens_total", {"kind": kind})


def steps(mix: str) -> float | None:
    return REGISTRY.get_sample_value("orthrus:steps_total", {"mix": mix})


def test_steps_within_an_interval_are_written_together(metrics: StepMetrics, clock: Clock):
    run(metrics, embed=10)
    assert tokens("embed") == 10
    clock.now += INTERVAL_S / 2
    run(metrics, embed=20, decode=3)
    run(metrics, embed=5, prefill=40)
    assert (tokens("embed"), tokens("decode"), steps("mixed")) == (10, 0, 0)
    clock.now += INTERVAL_S / 2
    run(metrics, decode=4, remaining={Kind.EMBED: 7, Kind.PREFILL: 0})
    assert (tokens("embed"), tokens("prefill"), tokens("decode")) == (35, 40, 7)
    assert (steps("embed"), steps("mixed"), steps("generate")) == (1, 2, 1)
    assert REGISTRY.get_sample_value("orthrus:budget_fill_count") == 4
    assert REGISTRY.get_sample_value("orthrus:budget_fill_sum") == pytest.approx(0.82)
    assert REGISTRY.get_sample_value("orthrus:remaining_tokens", {"kind": "embed"}) == 7
    assert REGISTRY.get_sample_value("orthrus:last_step_tokens", {"kind": "decode"}) == 4


def test_a_step_that_scheduled_nothing_writes_what_is_owed(metrics: StepMetrics, clock: Clock):
    run(metrics, embed=10, running={"embed": 1, "generate": 0})
    run(metrics, embed=30, decode=1, refused={Kind.PREFILL: Refusal.KV_BLOCKS})
    run(metrics, running={"embed": 0, "generate": 0})
    assert (tokens("embed"), steps("mixed")) == (40, 1)
    assert REGISTRY.get_sample_value("orthrus:running_requests", {"kind": "embed"}) == 0
    assert REGISTRY.get_sample_value("orthrus:last_step_tokens", {"kind": "embed"}) == 30
    heads = {"kind": "prefill", "reason": "kv_blocks"}
    assert REGISTRY.get_sample_value("orthrus:refused_heads_total", heads) == 1
