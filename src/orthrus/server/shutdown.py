"""How a server ends: open requests get an answer, and the exit status says whether the engine had died."""

from __future__ import annotations

import asyncio
import os
import socket
from argparse import Namespace
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import psutil  # type: ignore[import-untyped]

from orthrus.engine.compat import GracefulHTTPError
from orthrus.server.startup import descendants

STOPPING = "the server is stopping; send the request to another one, or later"
ENGINE_DIED = "the engine has died, and the server ends now; send the request to another one, or later"


def watch(engine_client: Any, app: Any, args: Namespace) -> None:
    """Wrap the client's `shutdown`, `add_request` and how its errors spread; call it in the server's loop.

    `args.engine_failed` becomes true where the engine had died before anyone stopped it: the server ends in
    the same way in both cases (vLLM, entrypoints/launchers/launcher.py), and the client counts as dead then.
    Requests that are open then fail with 503. vLLM answers 500 for a dead engine, and leaves requests waiting
    for one that was stopped; its HTTP server waits for them, so that a stop under load would last until the
    clients give up. Calls to the engine itself (`call_utility_async`, as in /orthrus/state) would never end.
    And its reader of outputs (v1/engine/async_llm.py) logs a stop as a crash where it hears of it too early.
    """
    loop = asyncio.get_running_loop()
    shutdown, add_request = engine_client.shutdown, engine_client.add_request
    as_raised = engine_client.engine_core._format_exception
    engine_processes = descendants()

    def fail_open_requests(_error: Exception | None = None) -> None:
        reason = why_unavailable(engine_client, args) or ENGINE_DIED
        # One error each: a shared one would collect the traceback of everyone who raises it.
        for request in engine_client.output_processor.request_states.values():
            request.queue.put(GracefulHTTPError(reason, HTTPStatus.SERVICE_UNAVAILABLE))
        for call in list(engine_client.engine_core.utility_results.values()):
            if not call.done():
                call.set_exception(GracefulHTTPError(reason, HTTPStatus.SERVICE_UNAVAILABLE))
        if reason is ENGINE_DIED:
            # A worker notices that its engine has gone only between two steps, and a step can be long.
            for process in engine_processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def watched_shutdown(*positional: Any, **named: Any) -> Any:
        if not hasattr(args, "engine_failed"):
            args.engine_failed = engine_client.errored
        try:
            return shutdown(*positional, **named)
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(fail_open_requests)
                _hear_out(app, loop)

    async def add_request_while_there_is_an_engine(*positional: Any, **named: Any) -> Any:
        if reason := why_unavailable(engine_client, args):
            raise GracefulHTTPError(reason, HTTPStatus.SERVICE_UNAVAILABLE)
        return await add_request(*positional, **named)

    def without_a_crash(error: Exception) -> BaseException:
        stopping = why_unavailable(engine_client, args) is STOPPING
        raised: BaseException = asyncio.CancelledError() if stopping else as_raised(error)
        return raised

    engine_client.output_processor.propagate_error = fail_open_requests
    engine_client.engine_core._format_exception = without_a_crash
    engine_client.add_request = add_request_while_there_is_an_engine
    engine_client.shutdown = watched_shutdown


def _hear_out(app: Any, loop: asyncio.AbstractEventLoop) -> None:
    """From another thread: let the loop read what has arrived, and let no one else connect.

    uvicorn's shutdown comes next, and closes connections whose request it has not read. Neither it nor vLLM
    closes the listening socket at a stop: clients would connect to it, and wait for nobody.
    """

    async def turns() -> None:
        for _ in range(5):
            await asyncio.sleep(0.01)

    async def hear_out() -> None:
        listening = [
            socket.socket(fileno=os.dup(shared.fileno()))
            for server in app.state.server.servers
            for shared in server.sockets
        ]
        for sock in listening:
            sock.listen(0)  # who has connected is accepted still; who has not waits, to be refused
        await turns()
        for sock in listening:
            with sock, suppress(OSError):  # only Linux can shut a socket that listens
                sock.shutdown(socket.SHUT_RDWR)
        await turns()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(hear_out(), loop).result(timeout=2)


def why_unavailable(engine_client: Any, args: Namespace) -> str | None:
    """Why no request can be taken, or None; `engine_client` is None while the server starts."""
    if hasattr(args, "engine_failed") and not args.engine_failed:
        return STOPPING
    if engine_client is not None and engine_client.errored:
        return ENGINE_DIED
    return None
