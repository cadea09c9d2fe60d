"""The short answers about blocks and cached prefixes agree with vLLM's KV cache manager."""

from pathlib import Path

import pytest
from bare_scheduler import BLOCK, answer, hashed, make_scheduler, request
from engine_driver import embed, generate

from orthrus.engine.prefixes import Prefixes
from orthrus.engine.scheduler import MixedScheduler

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 300])
def test_blocks_of_a_prompt_are_those_that_vllm_counts(length: int, tiny_model: Path):
    scheduler = make_scheduler(MixedScheduler, tiny_model)
    kv = scheduler.kv_cache_manager
    counted = kv.coordinator.get_num_blocks_to_allocate(
        request_id="new",
        num_tokens=length,
        new_computed_blocks=kv.empty_kv_cache_blocks.blocks,
        num_encoder_tokens=0,
        total_computed_tokens=0,
        num_local_computed_tokens=0,
        num_tokens_main_model=length,
        apply_admission_cap=True,
        prefill_end=length,
    )
    assert Prefixes(scheduler).blocks_of(length) == counted


def test_a_prompt_may_hit_only_once_its_first_block_is_cached(tiny_model: Path):
    scheduler = make_scheduler(MixedScheduler, tiny_model, enable_prefix_caching=True)
    known, other = list(range(100, 200)), list(range(300, 400))
    may_hit = Prefixes(scheduler).may_hit
    again = hashed("again", [*known, 9], generate(4))
    assert not may_hit(again)
    scheduler.add_request(hashed("first", known, generate(1)))
    answer(scheduler, scheduler.schedule())
    assert may_hit(again)
    assert not may_hit(hashed("other", other, embed()))
    assert not may_hit(hashed("short", known[: BLOCK - 1], generate(4)))
    blocks, cached = scheduler.kv_cache_manager.get_computed_blocks(again)[:2]
    assert cached == len(known) // BLOCK * BLOCK
    assert len(blocks.blocks[0]) == len(known) // BLOCK


def test_nothing_hits_while_prefix_caching_is_off(tiny_model: Path):
    scheduler = make_scheduler(MixedScheduler, tiny_model, enable_prefix_caching=False)
    known = list(range(100, 200))
    scheduler.add_request(hashed("first", known, generate(1)))
    answer(scheduler, scheduler.schedule())
    assert not Prefixes(scheduler).may_hit(hashed("again", known, generate(1)))


def test_where_blocks_are_not_plain_the_manager_is_asked(tiny_model: Path):
    scheduler = make_scheduler(MixedScheduler, tiny_model)
    scheduler._admission._prefixes._is_plain = False
    assert scheduler._admission._prefixes.blocks_of(64) is None
    scheduler.add_request(request("text", 40, embed()))
    scheduler.add_request(request("prompt", 40, generate(2)))
    assert scheduler.schedule().num_scheduled_tokens == {"text": 40, "prompt": 40}
