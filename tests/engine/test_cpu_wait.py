"""Processes of an engine on CPU nap where vLLM spins; later a notification wakes the reader, as in vLLM."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from vllm.distributed.device_communicators import shm_broadcast

from orthrus.engine import compat, cpu_wait


class YieldedError(Exception):
    """The reader spun instead of sleeping."""


@pytest.fixture
def stock_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """SpinCondition as vLLM has it, whatever an engine of this process did to it; restored afterwards."""
    wait = compat.SpinCondition.wait
    monkeypatch.setattr(compat.SpinCondition, "wait", getattr(wait, "stock", wait))

    def spin() -> None:
        raise YieldedError

    monkeypatch.setattr(shm_broadcast, "sched_yield", spin)


@pytest.fixture
def pair() -> Iterator[tuple[Any, Any]]:
    """A writer and its subscribed reader, which has just read."""
    context = zmq.Context()
    address = "inproc://cpu-wait"
    writer = compat.SpinCondition(is_reader=False, context=context, notify_address=address)
    reader = compat.SpinCondition(is_reader=True, context=context, notify_address=address)
    while not reader.local_notify_socket.poll(20):
        writer.notify()
    reader.local_notify_socket.recv()
    reader.record_read()
    yield writer, reader
    context.destroy(linger=0)


@pytest.mark.usefixtures("stock_wait")
def test_stock_vllm_spins_after_a_read(pair: tuple[Any, Any]) -> None:
    with pytest.raises(YieldedError):
        pair[1].wait(timeout_ms=10)


@pytest.mark.usefixtures("stock_wait")
def test_after_a_read_a_reader_naps_and_looks_again(pair: tuple[Any, Any]) -> None:
    cpu_wait.install()
    cpu_wait.install()
    pair[1].wait(timeout_ms=60_000)  # nobody notifies; the test's time limit would end a longer wait


@pytest.mark.usefixtures("stock_wait")
def test_later_a_reader_sleeps_until_it_is_notified(pair: tuple[Any, Any]) -> None:
    writer, reader = pair
    cpu_wait.install()
    reader.last_read -= 2 * reader.busy_loop_s
    woken = threading.Event()
    sleeper = threading.Thread(target=lambda: (reader.wait(timeout_ms=60_000), woken.set()))
    sleeper.start()
    assert not woken.wait(0.2)
    writer.notify()
    assert woken.wait(30)
    sleeper.join()


@pytest.mark.usefixtures("stock_wait")
def test_a_notification_before_the_wait_is_not_lost(pair: tuple[Any, Any]) -> None:
    writer, reader = pair
    cpu_wait.install()
    reader.last_read -= 2 * reader.busy_loop_s
    writer.notify()
    reader.wait(timeout_ms=60_000)


@pytest.mark.usefixtures("stock_wait")
def test_elsewhere_than_on_cpu_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = compat.SpinCondition.wait
    monkeypatch.setattr(type(compat.current_platform), "is_cpu", lambda self: False)
    cpu_wait.install()
    assert compat.SpinCondition.wait is stock
