"""The step trace: what every step says about the work that was there before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bare_scheduler import answer, make_scheduler, request
from engine_driver import embed, generate

from orthrus.engine.scheduler import MixedScheduler

pytestmark = pytest.mark.engine


def trace_of(scheduler: Any, path: Path) -> list[dict[str, Any]]:
    """Run until nothing is left; the lines of the trace."""
    while scheduler.requests:
        answer(scheduler, scheduler.schedule())
    scheduler._recorder.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_remaining_work_of_steps_without_embeddings(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    scheduler = make_scheduler(
        MixedScheduler, tiny_model, max_num_seqs=1, orthrus={"embed_slots": 0, "trace_steps": str(path)}
    )
    scheduler.add_request(request("first", 300, generate(2)))
    scheduler.add_request(request("second", 50, generate(1)))
    steps = trace_of(scheduler, path)
    assert [step["remaining"] for step in steps] == [
        {"embed": 0, "prefill": left} for left in (350, 222, 94, 50, 50)
    ]
    assert [step["tokens"]["prefill"] for step in steps] == [128, 128, 44, 0, 50]


def test_remaining_work_and_refusals_of_mixed_steps(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    scheduler = make_scheduler(
        MixedScheduler,
        tiny_model,
        max_loras=1,
        enable_lora=True,
        max_lora_rank=8,
        orthrus={"policy": "fcfs", "trace_steps": str(path)},
    )
    scheduler.add_request(request("writer", 100, generate(3), adapter=1))
    scheduler.add_request(request("passed-over", 40, embed(), adapter=2))
    scheduler.add_request(request("text", 60, embed()))
    steps = trace_of(scheduler, path)
    # The writer takes the only adapter slot, in the first step itself: there, too, the text overtakes.
    assert [step["remaining"] for step in steps[:3]] == [
        {"embed": 100, "prefill": 100},
        {"embed": 72, "prefill": 0},
        {"embed": 40, "prefill": 0},
    ]
    assert [step["refused"] for step in steps[:3]] == [{"embed": "adapter_slots"}] * 3
    assert steps[-1]["tokens"] == {"embed": 40, "prefill": 0, "decode": 0}
    assert steps[-1]["refused"] == {}
