"""How a server ends: open requests get an answer, and the exit status says whether the engine had died."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from http import HTTPStatus
from typing import Any

from orthrus.engine.compat import GracefulHTTPError

STOPPING = "the server is stopping; send the request to another one, or later"


def watch(engine_client: Any, args: Namespace) -> None:
    """Wrap the client's `shutdown`; call it in the server's event loop.

    `args.engine_failed` becomes true where the engine had died before anyone stopped it: the server ends in
    the same way in both cases (vLLM, entrypoints/launchers/launcher.py), and the client counts as dead then.
    Requests that are open then fail with 503. vLLM leaves them waiting for an engine that has gone, and
    its HTTP server waits for them, so that a stop under load would last until the clients give up.
    """
    loop = asyncio.get_running_loop()
    shutdown = engine_client.shutdown

    def answer_open_requests() -> None:
        error = GracefulHTTPError(STOPPING, HTTPStatus.SERVICE_UNAVAILABLE)
        engine_client.output_processor.propagate_error(error)

    def watched_shutdown(*positional: Any, **named: Any) -> Any:
        if not hasattr(args, "engine_failed"):
            args.engine_failed = engine_client.errored
        try:
            return shutdown(*positional, **named)
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(answer_open_requests)

    engine_client.shutdown = watched_shutdown


def why_unavailable(engine_client: Any, args: Namespace) -> str | None:
    """Why no request can be taken, or None; `engine_client` is None while the server starts."""
    if hasattr(args, "engine_failed") and not args.engine_failed:
        return STOPPING
    if engine_client is not None and engine_client.errored:
        return "the engine has died; the server ends now"
    return None
