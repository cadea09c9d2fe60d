"""The scheduler of GPU backends, which plans a step before the one before it has come back."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest
from bare_scheduler import answer, make_scheduler, request
from engine_driver import embed, generate
from vllm.v1.request import RequestStatus

from orthrus.engine.scheduler import AsyncMixedScheduler

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("policy", ["fcfs", "homogeneous", "ibs"])
@pytest.mark.parametrize("blocks", [1000, 24])
def test_two_steps_in_flight(policy: str, blocks: int, tiny_model: Path) -> None:
    scheduler = make_scheduler(AsyncMixedScheduler, tiny_model, blocks, orthrus={"policy": policy})
    for i in range(6):
        scheduler.add_request(request(f"text-{i}", 1 + 70 * i, embed()))
        scheduler.add_request(request(f"writer-{i}", 5 + 40 * i, generate(9)))
    under_way: deque = deque()
    computed: dict[str, int] = {}
    finished: set[str] = set()
    for _ in range(400):
        if not scheduler.has_unfinished_requests() and not under_way:
            break
        output = scheduler.schedule()
        under_way.append(output)
        for name in output.preempted_req_ids or ():
            computed.pop(name, None)
        for name, tokens in output.num_scheduled_tokens.items():
            computed[name] = computed.get(name, 0) + tokens
            assert scheduler.requests[name].num_output_placeholders == 0 or name.startswith("writer")
        if len(under_way) == 2:
            finished |= answer(scheduler, under_way.popleft())
    assert finished == {f"{kind}-{i}" for kind in ("text", "writer") for i in range(6)}
    assert {n: c for n, c in computed.items() if n.startswith("text")} == {
        f"text-{i}": 1 + 70 * i for i in range(6)
    }
    assert not any(scheduler.check_idle().values())


def test_abort_of_an_embedding_whose_last_chunk_is_under_way(tiny_model: Path) -> None:
    scheduler = make_scheduler(AsyncMixedScheduler, tiny_model)
    scheduler.add_request(request("text", 40, embed()))
    output = scheduler.schedule()
    idle = scheduler.schedule()
    assert (output.num_scheduled_tokens, idle.num_scheduled_tokens) == ({"text": 40}, {})
    scheduler.finish_requests("text", RequestStatus.FINISHED_ABORTED)
    assert answer(scheduler, output) == set()
    assert not any(scheduler.check_idle().values())
