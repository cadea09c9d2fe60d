"""KindQueue against a naive list."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orthrus.policy.blocks import SortedBlocks
from orthrus.policy.queues import KindQueue
from orthrus.policy.work import Kind, WorkItem


class QueueMachine(RuleBasedStateMachine):
    """The model: a list of [id, remaining, order, in_flight] in order of adding, sorted when it is read."""

    def __init__(self):
        super().__init__()
        self.queue = KindQueue(Kind.EMBED)
        self.model = []
        self.added = 0

    def pick(self, index, in_flight=None):
        rows = [row for row in self.model if in_flight is None or row[3] is in_flight]
        return rows[index % len(rows)]

    @rule(remaining=st.integers(1, 1000), priority=st.integers(0, 3), in_flight=st.booleans())
    def add(self, remaining, priority, in_flight):
        request_id = f"r{self.added}"
        self.added += 1
        self.queue.add(request_id, remaining, (priority, self.added), in_flight=in_flight)
        self.model.append([request_id, remaining, (priority, self.added), in_flight])

    @precondition(lambda self: self.model)
    @rule(index=st.integers(0, 100))
    def remove(self, index):
        row = self.pick(index)
        self.model.remove(row)
        assert self.queue.remove(row[0]) == WorkItem(row[0], Kind.EMBED, *row[1:])

    @precondition(lambda self: self.model)
    @rule(index=st.integers(0, 100), remaining=st.integers(1, 1000))
    def update(self, index, remaining):
        row = self.pick(index)
        row[1] = remaining
        self.queue.update(row[0], remaining)

    @precondition(lambda self: any(not row[3] for row in self.model))
    @rule(index=st.integers(0, 100))
    def start(self, index):
        row = self.pick(index, False)
        row[3] = True
        self.queue.start(row[0])

    @precondition(lambda self: any(row[3] for row in self.model))
    @rule(index=st.integers(0, 100), remaining=st.integers(1, 1000))
    def preempt(self, index, remaining):
        row = self.pick(index, True)
        row[1], row[3] = remaining, False
        self.queue.preempt(row[0], remaining)

    @invariant()
    def agrees_with_the_model(self):
        expected = sorted(self.model, key=lambda row: (not row[3], row[2]))
        assert list(self.queue) == [WorkItem(row[0], Kind.EMBED, *row[1:]) for row in expected]
        assert [item.request_id for item in self.queue.waiting()] == [r[0] for r in expected if not r[3]]
        assert self.queue.remaining == sum(row[1] for row in self.model)
        assert len(self.queue) == len(self.model)
        assert self.queue.in_flight_count == sum(row[3] for row in self.model)
        assert self.queue.waiting_count == sum(not row[3] for row in self.model)
        assert all(row[0] in self.queue for row in self.model)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_equal_orders_keep_the_order_of_adding_through_a_preemption():
    queue = KindQueue(Kind.PREFILL)
    for request_id in "abc":
        queue.add(request_id, 1, 0)
    queue.start("a")
    queue.preempt("a", 5)
    assert [item.request_id for item in queue] == ["a", "b", "c"]


def test_blocks_split_and_vanish_in_any_order():
    blocks = SortedBlocks()
    entries = [((number * 7919) % 5000, number, str(number)) for number in range(5000)]
    for entry in entries:
        blocks.add(entry)
    assert list(blocks) == sorted(entries)
    for entry in entries[::2]:
        blocks.remove(entry)
    assert list(blocks) == sorted(entries[1::2])
    assert len(blocks) == 2500
    for entry in sorted(entries[1::2]):
        blocks.remove(entry)
    assert (len(blocks), list(blocks)) == (0, [])
    with pytest.raises(ValueError, match="not in this list"):
        blocks.remove(entries[0])


def test_reading_the_front_looks_at_no_more_than_the_front():
    """Requests far behind are never touched: a poisoned one does not show until it is reached."""
    queue = KindQueue(Kind.EMBED)
    for number in range(20_000):
        queue.add(str(number), 1, number)
    for number in range(19_000):
        queue.remove(str(number))
    queue._items["19003"] = None
    front = iter(queue)
    assert [next(front).request_id for _ in range(3)] == ["19000", "19001", "19002"]
    assert next(front) is None


def test_a_change_during_iteration_is_an_error():
    queue = KindQueue(Kind.EMBED)
    queue.add("a", 1, 0)
    queue.add("b", 1, 1)
    items = iter(queue)
    next(items)
    queue.remove("a")
    with pytest.raises(RuntimeError, match="changed while it was iterated"):
        next(items)


def test_misuse_is_named():
    queue = KindQueue(Kind.EMBED)
    queue.add("a", 3, 0)
    with pytest.raises(ValueError, match="'a' is already in the embed queue"):
        queue.add("a", 3, 1)
    with pytest.raises(ValueError, match="remaining is 0, must be at least 1"):
        queue.add("b", 0, 1)
    with pytest.raises(ValueError, match="remaining is -1"):
        queue.update("a", -1)
    with pytest.raises(KeyError, match="'b' is not in the embed queue"):
        queue.remove("b")
    with pytest.raises(ValueError, match="not in flight"):
        queue.preempt("a", 3)
    queue.start("a")
    with pytest.raises(ValueError, match="already in flight"):
        queue.start("a")
    with pytest.raises(TypeError):
        queue.add("c", 3, "late", in_flight=True)
    assert (len(queue), queue.remaining) == (1, 3)
