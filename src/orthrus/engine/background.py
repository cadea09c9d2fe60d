"""An asyncio event loop in a thread of its own, which any other thread or loop hands its coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class EngineClosedError(RuntimeError):
    """The engine was closed before, or while, it worked on this."""


class Background:
    """Runs coroutines in a daemon thread until `close`. Safe to use from any thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `coroutine`; cancelling the future cancels it. Raises EngineClosedError after `close`."""
        with self._lock:
            if self._closed:
                coroutine.close()
                raise EngineClosedError("the engine is closed")
            return asyncio.run_coroutine_threadsafe(self._tracked(coroutine), self._loop)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of `coroutine`, waited for by this thread; an interrupt (Ctrl-C) cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()

    async def result(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of `coroutine`, awaited in the caller's own loop; cancelling the await cancels it."""
        return await asyncio.wrap_future(self.submit(coroutine))

    async def iterate(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The items of `items`, which runs here, for the caller's own loop; ending early cancels it."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[T | None] = asyncio.Queue()

        async def produce() -> None:
            try:
                async for item in items:
                    loop.call_soon_threadsafe(queue.put_nowait, item)
            finally:
                loop.call_soon_threadsafe(queue.put_nowait, None)

        producer = self.submit(produce())
        try:
            while (item := await queue.get()) is not None:
                yield item
            await asyncio.wrap_future(producer)  # raises what ended it early, if anything did
        finally:
            producer.cancel()

    def close(self, finish: Callable[[], None]) -> None:
        """Cancel what runs (its callers get EngineClosedError), call `finish` in the loop, end the thread.

        Calls after the first wait until that one is done.
        """
        with self._lock:
            first, self._closed = not self._closed, True
        if not first:
            self._thread.join()
            return
        try:
            asyncio.run_coroutine_threadsafe(self._wind_up(finish), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _tracked(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self._closed:
                raise EngineClosedError("the engine was closed while it worked on this") from None
            raise
        finally:
            self._tasks.discard(task)

    async def _wind_up(self, finish: Callable[[], None]) -> None:
        await _cancelled(self._tasks)
        await asyncio.sleep(0)  # lets those who wait for them hear of it
        try:
            finish()
        finally:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            await _cancelled({task for task in rest if task is not None})
            await self._loop.shutdown_asyncgens()
            await self._loop.shutdown_default_executor()


async def all_of(coroutines: list[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order; the first error cancels the others and is raised."""
    tasks = {asyncio.ensure_future(coroutine): None for coroutine in coroutines}
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancelled(set(tasks))


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    waiting = [task for task in tasks if not task.done()]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
