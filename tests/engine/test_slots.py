"""Generations keep stock vLLM's number of sequence slots; embeddings have rows of their own beside them."""

from pathlib import Path

import pytest
from bare_scheduler import make_scheduler, request
from engine_driver import embed, generate

from orthrus.engine.scheduler import MixedScheduler
from orthrus.engine.slots import default_embed_slots

pytestmark = pytest.mark.engine


def scheduled(scheduler):
    return set(scheduler.schedule().num_scheduled_tokens)


def test_a_full_house_of_generations_leaves_room_for_embeddings_and_no_more_generations(tiny_model: Path):

    scheduler = make_scheduler(MixedScheduler, tiny_model, max_num_seqs=4)
    assert (scheduler.generation_slots, scheduler.max_num_running_reqs) == (4, 4 + default_embed_slots(4))
    for i in range(6):
        scheduler.add_request(request(f"g{i}", 8, generate(16)))
    assert scheduled(scheduler) == {"g0", "g1", "g2", "g3"}
    for i in range(3):
        scheduler.add_request(request(f"e{i}", 8, embed()))
    assert scheduled(scheduler) >= {"e0", "e1"}
    assert {r.request_id for r in scheduler.running} == {"g0", "g1", "g2", "g3", "e0", "e1"}


def test_embeddings_alone_may_take_every_slot(tiny_model: Path):

    scheduler = make_scheduler(MixedScheduler, tiny_model, max_num_seqs=4)
    for i in range(8):
        scheduler.add_request(request(f"e{i}", 8, embed()))
    assert len(scheduled(scheduler)) == 6


def test_no_slots_of_their_own_is_stock_behaviour(tiny_model: Path):

    scheduler = make_scheduler(MixedScheduler, tiny_model, max_num_seqs=4, orthrus={"embed_slots": 0})
    assert (scheduler.generation_slots, scheduler.max_num_running_reqs) == (4, 4)
    for i in range(4):
        scheduler.add_request(request(f"g{i}", 8, generate(16)))
    scheduler.schedule()
    scheduler.add_request(request("e", 8, embed()))
    assert "e" not in scheduled(scheduler)


@pytest.mark.parametrize(("seqs", "extra"), [(1, 2), (16, 2), (64, 8), (256, 32)])
def test_the_default(seqs, extra):
    assert default_embed_slots(seqs) == extra
