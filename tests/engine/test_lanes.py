"""Waiting requests by adapter: the order across lanes, what is left out, and the totals."""

from __future__ import annotations

import random

import pytest

from orthrus.engine.lanes import InFlightThenWaiting, Lanes
from orthrus.policy.work import Kind, WorkItem


def lanes_of(*adapters: int) -> Lanes:
    """Requests r0, r1 ... in this order, request i with 10 + i tokens and the i-th of the adapters."""
    lanes = Lanes(Kind.EMBED)
    for i, adapter in enumerate(adapters):
        lanes.add(f"r{i}", 10 + i, (i,), adapter)
    return lanes


def names(lanes: Lanes, *closed: int) -> list[str]:
    return [item.request_id for item in lanes.startable(lambda _, adapter: adapter not in closed)]


def test_order_is_kept_across_lanes_and_closed_ones_are_left_out():
    lanes = lanes_of(1, 0, 2, 1, 0)
    assert lanes.first() == "r0"
    assert names(lanes) == ["r0", "r1", "r2", "r3", "r4"]
    assert names(lanes, 1) == ["r1", "r2", "r4"]
    assert names(lanes, 1, 2) == ["r1", "r4"]


def test_a_closed_lane_costs_one_question_however_many_wait_in_it():
    lanes = lanes_of(*[1] * 1000, 0)
    asked = []
    found = [item.request_id for item in lanes.startable(lambda item, _: bool(asked.append(item.request_id)))]
    assert found == ["r1000"]
    assert asked == ["r0"]


def test_a_lane_that_closes_on_the_way_ends_there():
    taken: list[str] = []
    for item in lanes_of(1, 1, 1, 0).startable(lambda *_: len(taken) < 2):
        taken.append(item.request_id)
    assert taken == ["r0", "r1", "r3"]


def test_totals_and_order_under_random_changes():
    rng = random.Random(3)
    lanes, kept = Lanes(Kind.PREFILL), {}
    for i in range(400):
        if kept and rng.random() < 0.4:
            gone = rng.choice(sorted(kept))
            lanes.remove(gone)
            del kept[gone]
        else:
            kept[f"r{i}"] = (rng.random(), rng.randint(1, 50))
            lanes.add(f"r{i}", kept[f"r{i}"][1], kept[f"r{i}"][0], rng.randrange(4))
        assert len(lanes) == len(kept)
        assert lanes.remaining == sum(tokens for _, tokens in kept.values())
        assert names(lanes) == sorted(kept, key=kept.__getitem__)
        assert lanes.first() == (min(kept, key=kept.__getitem__) if kept else None)


def test_misuse_is_an_error():
    lanes = lanes_of(1)
    with pytest.raises(ValueError, match="already"):
        lanes.add("r0", 3, (9,), 2)
    with pytest.raises(KeyError):
        lanes.remove("unknown")
    assert (len(lanes), lanes.remaining) == (1, 10)


def test_requests_in_flight_come_first_in_order():
    flying = [WorkItem(name, Kind.EMBED, 5, (order,), True) for name, order in (("b", 8), ("a", 7))]
    work = InFlightThenWaiting(flying, lanes_of(0, 3), lambda *_: False)
    assert [item.request_id for item in work] == ["a", "b", "r0"]
    assert work.remaining == 5 + 5 + 10 + 11
