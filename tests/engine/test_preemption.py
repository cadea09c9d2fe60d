"""A request that loses its blocks leaves nothing in the prefix cache that was not computed."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_scheduler import BLOCK, answer, hashed, make_scheduler
from engine_driver import generate, tokens
from vllm.v1.core.sched.scheduler import Scheduler

from orthrus.engine.scheduler import MixedScheduler

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(("scheduler_class", "leaves"), [(Scheduler, True), (MixedScheduler, False)])
def test_blocks_of_the_step_that_preempts_are_in_no_cache(
    scheduler_class: type, leaves: bool, tiny_model: Path
) -> None:
    """By priority vLLM may schedule a request and then preempt it for another in the same step."""
    scheduler = make_scheduler(
        scheduler_class,
        tiny_model,
        blocks=14,
        long_prefill_token_threshold=40,
        scheduling_policy="priority",
        enable_prefix_caching=True,
    )
    low = hashed("low", tokens(1, 340), generate(100))
    high = hashed("high", tokens(2, 2 * BLOCK - 2), generate(100))
    low.priority = 5
    scheduler.add_request(low)
    answer(scheduler, scheduler.schedule())
    scheduler.add_request(high)
    computed = 0
    for _ in range(12):
        computed = low.num_computed_tokens
        output = scheduler.schedule()
        answer(scheduler, output)
        if output.preempted_req_ids:
            break
    assert output.preempted_req_ids == {"low"}
    assert low.num_computed_tokens == 0
    pool = scheduler.kv_cache_manager.block_pool
    cached = [pool.get_cached_block(block_hash, [0]) is not None for block_hash in low.block_hashes]
    full = computed // BLOCK
    assert any(cached[full:]) is leaves
    assert any(cached[:full])
