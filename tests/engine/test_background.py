"""The event loop in a thread: results, errors, cancellation from another loop, and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest

from orthrus.engine.background import Background, EngineClosedError, all_of


@pytest.fixture
def background() -> Iterator[Background]:
    started = Background("loop-under-test")
    yield started
    started.close(lambda: None)
    assert "loop-under-test" not in [thread.name for thread in threading.enumerate()]


async def name_of_thread() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise ValueError("wrong")


async def never(cancelled: threading.Event) -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        cancelled.set()


async def count(closed: threading.Event) -> AsyncGenerator[int, None]:
    try:
        for i in range(1000):
            yield i
            await asyncio.sleep(0)
        raise ValueError("counted too far")
    finally:
        closed.set()


async def test_results_and_errors_reach_threads_and_loops(background: Background) -> None:
    assert background.wait(name_of_thread()) == "loop-under-test"
    assert await background.result(name_of_thread()) == "loop-under-test"
    with pytest.raises(ValueError, match="wrong"):
        background.wait(fail())
    with pytest.raises(ValueError, match="wrong"):
        await background.result(fail())


async def test_cancelling_the_await_cancels_the_work(background: Background) -> None:
    cancelled = threading.Event()
    task = asyncio.create_task(background.result(never(cancelled)))
    await asyncio.sleep(0)
    background.wait(asyncio.sleep(0))  # by now it has started
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.wait(10)


async def test_iteration_ends_with_the_items_their_error_or_the_reader(background: Background) -> None:
    closed = threading.Event()
    seen: list[int] = []

    async def read() -> None:
        async for item in background.iterate(count(closed)):
            seen.append(item)

    with pytest.raises(ValueError, match="too far"):
        await read()
    assert seen == list(range(1000))
    closed.clear()
    items = background.iterate(count(closed))
    assert await anext(items) == 0
    await items.aclose()
    assert closed.wait(10)


async def test_the_first_error_cancels_the_others() -> None:
    cancelled = threading.Event()
    with pytest.raises(ValueError, match="wrong"):
        await all_of([never(cancelled), fail()])
    assert cancelled.is_set()


def test_close_ends_what_runs_once() -> None:
    background, cancelled, finished = Background("closing"), threading.Event(), []
    future = background.submit(never(cancelled))
    background.wait(asyncio.sleep(0))
    background.close(lambda: finished.append("first"))
    background.close(lambda: finished.append("second"))
    assert finished == ["first"]
    assert cancelled.is_set()
    with pytest.raises(EngineClosedError):
        future.result()
    with pytest.raises(EngineClosedError, match="closed"):
        background.submit(fail())
