"""The demo's server: `orthrus serve` as a child process that never outlives the demo."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import httpx
import openai

T = TypeVar("T")
LOG_LINES = 20
STOP_SECONDS = 20.0
CONNECTION_ERRORS = (httpx.TransportError, openai.APIConnectionError)


class ServerError(RuntimeError):
    """The server did not start, or died; the message ends with the last lines of its log."""


def free_port(wanted: int = 0) -> int:
    """A loopback port that nothing listens on: `wanted`, or any for 0.

    Raises ServerError when it cannot be had.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise ServerError(
                f"port {wanted} cannot be used ({error.strerror}); choose another with --port, or 0 for any"
            ) from error
        return int(probe.getsockname()[1])


class Server:
    """A server process in a session of its own, so that Ctrl-C reaches the demo only, which then stops it."""

    def __init__(self, command: Sequence[str], port: int, log: Path, extra_env: dict[str, str]) -> None:
        """Start `command`, which must listen on loopback `port`; its output goes to the file `log`."""
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **extra_env},
                start_new_session=True,
            )

    async def ready(self, timeout: float, progress: Callable[[float], None]) -> None:
        """Wait until GET /health answers 200, telling `progress` the seconds waited, four times a second.

        Raises ServerError after `timeout` seconds.
        """
        loop = asyncio.get_running_loop()
        start = loop.time()
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:
            while (waited := loop.time() - start) < timeout:
                progress(waited)
                try:
                    if (await client.get(f"{self.url}/health")).status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass  # not listening yet
                await asyncio.sleep(0.25)
        raise ServerError(f"the server was not ready after {timeout:.0f} s{self._log_tail()}")

    async def during(self, work: Awaitable[T]) -> T:
        """The result of `work`; raises ServerError, and cancels the work, if the server dies meanwhile."""
        task = asyncio.ensure_future(work)
        death = asyncio.ensure_future(self._death())
        try:
            await asyncio.wait([task, death], return_when=asyncio.FIRST_COMPLETED)
            if task.done() and isinstance(task.exception(), CONNECTION_ERRORS):
                # The work often notices a death first; a dying process needs a moment to be gone.
                await asyncio.wait([death], timeout=2)
            if death.done():
                death.result()
            return task.result()
        finally:
            task.cancel()
            death.cancel()
            await asyncio.gather(task, death, return_exceptions=True)

    async def _death(self) -> None:
        while (status := self._process.poll()) is None:
            await asyncio.sleep(0.1)
        raise ServerError(f"the server ended with status {status}{self._log_tail()}")

    def _log_tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = lines[-LOG_LINES:]
        # The end of the log says that a process failed; the first error, often far above, says why.
        causes = (
            line for line in lines if re.search(r"\w(Error|Exception): ", line) and "WARNING" not in line
        )
        cause = next(causes, None)
        if cause is not None and cause not in tail:
            tail = [cause, "...", *tail]
        listed = "\n".join(f"  {line}" for line in tail)
        return f"; the last lines of its log ({self._log}):\n{listed}"

    def stop(self) -> None:
        """End the server and every process it started: SIGTERM, then SIGKILL for what is left."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        with suppress(ProcessLookupError):  # the whole group has gone, as it should
            os.killpg(self._process.pid, signal.SIGKILL)
