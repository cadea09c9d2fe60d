"""KV blocks: a prompt that needs many is passed by the other kind, but not for ever."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from bare_scheduler import BLOCK, answer, make_scheduler, request
from engine_driver import embed, generate

from orthrus.engine.scheduler import MixedScheduler

pytestmark = pytest.mark.engine

BLOCKS, ROWS = 24, 8
SOME_STEPS = 40


@pytest.mark.parametrize("giant", ["embed", "generate"])
@pytest.mark.parametrize("policy", ["fcfs", "ibs", "homogeneous"])
def test_a_giant_is_overtaken_by_as_many_requests_as_there_are_rows(
    policy: str, giant: str, tiny_model: Path
) -> None:
    """The other kind keeps the cache full for as long as it may; the giant needs 15 of its 23 blocks."""
    scheduler = make_scheduler(
        MixedScheduler,
        tiny_model,
        BLOCKS,
        orthrus={"policy": policy, "policy_options": {"embed_chunk": 32} if policy == "ibs" else {}},
        max_num_seqs=ROWS - 2,
        max_num_batched_tokens=64,
    )
    big, small = (embed(), lambda: generate(20)) if giant == "embed" else (generate(2), embed)
    numbers = count()
    submitted: list[str] = []

    def flood() -> None:
        while len(scheduler.requests) < 2 * ROWS:
            submitted.append(f"small-{next(numbers)}")
            scheduler.add_request(request(submitted[-1], 150, small()))

    started: list[str] = []

    def step() -> None:
        flood()
        output = scheduler.schedule()
        started.extend(new.req_id for new in output.scheduled_new_reqs)
        answer(scheduler, output)

    for _ in range(6):
        step()
    already = len(submitted)
    scheduler.add_request(request("giant", 480, big))
    for _ in range(3000):
        if "giant" in started:
            break
        step()
    overtakers = set(submitted[already:]) & set(started)
    assert "giant" in started
    assert len(overtakers) <= ROWS
    if giant == "embed":  # generations hold their blocks long enough to use the whole allowance
        assert len(overtakers) == ROWS


def test_nobody_waits_for_a_giant_while_nothing_runs(tiny_model: Path) -> None:
    """Held blocks (a streaming session's, say) are not given back by waiting for the batch to drain."""
    scheduler = make_scheduler(MixedScheduler, tiny_model, BLOCKS, max_num_seqs=1)
    pool = scheduler.kv_cache_manager.block_pool
    held = pool.get_new_blocks(12)
    scheduler.add_request(request("giant", 480, embed()))
    for i in range(10):
        scheduler.add_request(request(f"small-{i}", 40, generate(1)))
    for _ in range(SOME_STEPS):
        answer(scheduler, scheduler.schedule())
    assert set(scheduler.requests) == {"giant"}
    pool.free_blocks(held)
    for _ in range(SOME_STEPS):
        answer(scheduler, scheduler.schedule())
    assert not scheduler.requests


def test_what_running_requests_take_in_the_step_is_not_offered_to_waiting_ones(tiny_model: Path) -> None:
    """Two decodes that reach their next block take the last two; vLLM would refuse whom the policy admits."""
    scheduler = make_scheduler(MixedScheduler, tiny_model, 7)
    for name in ("a", "b"):
        scheduler.add_request(request(name, 2 * BLOCK - 1, generate(8)))
    while scheduler.kv_cache_manager.block_pool.get_num_free_blocks() != 2 or any(
        r.num_computed_tokens < 2 * BLOCK for r in scheduler.running
    ):
        answer(scheduler, scheduler.schedule())
    scheduler.add_request(request("text", 2 * BLOCK, embed()))
    output = scheduler.schedule()
    assert set(output.num_scheduled_tokens) == {"a", "b"}
    assert not scheduler._admission.admitted
    answer(scheduler, output)
    for _ in range(SOME_STEPS):
        answer(scheduler, scheduler.schedule())
    assert not scheduler.requests
