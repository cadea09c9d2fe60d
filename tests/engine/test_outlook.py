from types import SimpleNamespace

import pytest

from orthrus.engine.outlook import NEWEST_WEIGHT, Outlook
from orthrus.policy.options import PolicyOptions
from orthrus.policy.queues import KindQueue
from orthrus.policy.work import Kind, WorkItem


def generation(outputs, max_tokens, arrival=0.0):
    return SimpleNamespace(
        pooling_params=None, num_output_tokens=outputs, max_tokens=max_tokens, arrival_time=arrival
    )


class Waiting:
    """A stand-in for WaitingByKind."""

    def __init__(self, *requests):
        self.requests = requests
        self.max_output_tokens = sum(r.max_tokens for r in requests)
        self.kinds = {Kind.PREFILL: KindQueue(Kind.PREFILL)}
        for i, _ in enumerate(requests):
            self.kinds[Kind.PREFILL].add(f"w{i}", 1, i)


def outlook(running=(), waiting=(), **options):
    scheduler = SimpleNamespace(
        running=list(running),
        requests={f"r{i}": request for i, request in enumerate(running)},
        real_waiting=Waiting(*waiting),
    )
    return Outlook(scheduler, PolicyOptions(**options))


def test_expected_decodes_are_max_tokens_until_outputs_were_seen():
    view = outlook([generation(10, 100)], [generation(0, 50), generation(0, 70)], count_decode=True)
    assert view.expected_decode_tokens() == 90 + 120
    view.observe(generation(30, 100))
    # mean 30: the running one has 20 left, the two waiting ones 30 each
    assert view.expected_decode_tokens() == 20 + 60
    view.observe(generation(40, 100))
    mean = 30 + NEWEST_WEIGHT * 10
    assert view.expected_decode_tokens() == int((mean - 10) + 2 * mean)


def test_an_output_longer_than_the_mean_still_counts_as_one_token():
    view = outlook([generation(35, 100)], count_decode=True)
    view.observe(generation(30, 100))
    assert view.expected_decode_tokens() == 1


def test_a_wait_counts_from_the_arrival(monkeypatch):
    monkeypatch.setattr("orthrus.engine.outlook.time.time", lambda: 100.0)
    view = outlook([generation(3, 10, arrival=1.0), generation(0, 10, arrival=97.5)])
    assert view.wait_s(WorkItem("r1", Kind.PREFILL, 8, 0, True)) == pytest.approx(2.5)
    assert view.wait_s(WorkItem("r0", Kind.PREFILL, 8, 0, False)) == pytest.approx(99.0)


def test_a_clock_that_was_set_back_is_no_negative_wait(monkeypatch):
    monkeypatch.setattr("orthrus.engine.outlook.time.time", lambda: 100.0)
    assert (
        outlook([generation(0, 10, arrival=160.0)]).wait_s(WorkItem("r0", Kind.PREFILL, 8, 0, False)) == 0.0
    )
