"""The step trace: what every step says about the work that was there before it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bare_scheduler import BLOCK, answer, hashed, make_scheduler, request
from engine_driver import embed, generate, tokens
from vllm import SamplingParams
from vllm.v1.request import RequestStatus

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


@pytest.mark.parametrize("params", [generate(1), embed("last")])
def test_what_the_prefix_cache_holds_is_no_work(params: Any, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    scheduler = make_scheduler(
        MixedScheduler, tiny_model, enable_prefix_caching=True, orthrus={"trace_steps": str(path)}
    )
    for name in ("first", "again"):
        scheduler.add_request(hashed(name, tokens(1, 2 * BLOCK + 5), params))
        answer(scheduler, scheduler.schedule())
    kind = "prefill" if isinstance(params, SamplingParams) else "embed"
    steps = trace_of(scheduler, path)
    assert [step["tokens"][kind] for step in steps] == [2 * BLOCK + 5, 5]
    assert [step["remaining"][kind] for step in steps] == [2 * BLOCK + 5, 5]


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


def test_generations_that_wait_although_the_step_has_room_say_why(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    scheduler = make_scheduler(
        MixedScheduler,
        tiny_model,
        blocks=8,
        max_num_seqs=2,
        max_loras=1,
        enable_lora=True,
        max_lora_rank=8,
        orthrus={"trace_steps": str(path)},
    )
    scheduler.add_request(request("short", 20, generate(4), adapter=1))
    scheduler.add_request(request("other-adapter", 20, generate(1), adapter=2))
    for _ in range(2):
        answer(scheduler, scheduler.schedule())
    scheduler.add_request(request("second", 20, generate(1)))
    scheduler.add_request(request("third", 20, generate(1)))
    answer(scheduler, scheduler.schedule())
    scheduler.finish_requests(["other-adapter", "third"], RequestStatus.FINISHED_ABORTED)
    scheduler.add_request(request("long", 220, generate(1)))  # 7 blocks, all there are
    steps = trace_of(scheduler, path)
    assert [step["refused"] for step in steps[:4]] == [
        {"prefill": "adapter_slots"},
        {"prefill": "adapter_slots"},
        {"prefill": "sequence_slots"},
        {"prefill": "kv_blocks"},
    ]
    assert steps[-1]["refused"] == {}


def test_a_trace_that_cannot_be_written_ends_and_the_engine_goes_on(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make_scheduler(MixedScheduler, tiny_model, orthrus={"trace_steps": "/dev/full"})
    scheduler.add_request(request("text", 60, embed()))
    scheduler.add_request(request("chat", 60, generate(2)))
    while scheduler.requests:
        answer(scheduler, scheduler.schedule())
    assert [r.getMessage() for r in caplog.records if "step trace ends" in r.getMessage()] == [
        "The step trace ends at step 1: [Errno 28] No space left on device"
    ]
    scheduler.shutdown()


def test_embeddings_that_were_aborted_leave_no_credit(tiny_model: Path) -> None:
    scheduler = make_scheduler(
        MixedScheduler, tiny_model, orthrus={"policy": "ibs", "policy_options": {"prefill_chunk": 16}}
    )
    scheduler.add_request(request("text", 400, embed()))
    scheduler.add_request(request("chat", 490, generate(2)))
    answer(scheduler, scheduler.schedule())
    assert scheduler.mix_policy.state()["credit_embed"] != 0
    scheduler.finish_requests(["text"], RequestStatus.FINISHED_ABORTED)
    answer(scheduler, scheduler.schedule())
    assert scheduler.mix_policy.state()["credit_embed"] == scheduler.mix_policy.state()["embed_share"] == 0


def test_a_step_is_settled_and_recorded_once_vllm_has_sent_it_to_the_workers(
    tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "steps.jsonl"
    scheduler = make_scheduler(
        MixedScheduler,
        tiny_model,
        orthrus={"policy": "ibs", "trace_steps": str(path), "policy_options": {"prefill_chunk": 16}},
    )
    scheduler.add_request(request("text", 300, embed()))
    scheduler.add_request(request("chat", 490, generate(2)))

    def settled() -> tuple[float, int]:
        return scheduler.mix_policy.state()["tokens_embed"], len(path.read_text().splitlines())

    first = scheduler.schedule()
    assert settled() == (0, 0)
    scheduler.get_grammar_bitmask(first)
    given = first.num_scheduled_tokens["text"]
    assert settled() == (given, 1)
    second = scheduler.schedule()
    scheduler.schedule()  # two steps in flight, and vLLM did not ask in between
    given += second.num_scheduled_tokens.get("text", 0)
    assert settled() == (given, 2)
    scheduler.shutdown()
    assert settled()[1] == 3


def test_a_step_without_work_is_recorded_at_once(tiny_model: Path) -> None:
    written: list[Any] = []
    scheduler = make_scheduler(MixedScheduler, tiny_model, orthrus={"embed_slots": 1})
    scheduler._recorder = SimpleNamespace(enabled=True, step=lambda *args: written.append(args[1]))
    scheduler.add_request(request("text", 40, embed()))
    output = scheduler.schedule()
    assert written == []
    idle = scheduler.schedule()  # its only chunk is under way
    assert written == [output, idle]
