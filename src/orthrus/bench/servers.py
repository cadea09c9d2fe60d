"""Start, watch and end a topology's servers; nothing outlives the `with`, not even after Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx
import psutil  # type: ignore[import-untyped]

from orthrus import preload
from orthrus.bench.peers.command import PeerError, installed
from orthrus.bench.topology import Plan

STOP_SECONDS = 15.0
LOG_LINES = 25
OVERRIDDEN = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "CUDA_VISIBLE_DEVICES", preload.GUARD)
"""Variables of our own environment that a server must not inherit: each would undo the plan."""


class ServerError(RuntimeError):
    """A server did not become healthy, or died; the message ends with the last lines of its log."""


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Running:
    """A started server: its plan, process (leader of its own session) and log."""

    plan: Plan
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self) -> str:
        """The last lines of the log, indented."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join(f"  {line}" for line in lines)

    def check(self) -> None:
        """ServerError if the process has ended."""
        status = self.process.poll()
        if status is not None:
            raise ServerError(f"{self.plan.name} ended with status {status}; its log:\n{self.tail()}")


class Servers:
    """Context manager: entering starts all plans at once and waits until each answers GET /health with 200.

    Each server leads a session of its own, so Ctrl-C reaches us only; leaving sends SIGTERM, waits, then
    kills whatever the servers started, in their session or out of it.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        logs: Path,
        start_seconds: float,
        waiting: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`logs` is a folder for one log a server; `waiting` hears the seconds waited so far."""
        self._plans = plans
        self._logs = logs
        self._start_seconds = start_seconds
        self._waiting = waiting
        self.running: list[Running] = []

    def __enter__(self) -> Servers:
        try:
            self._start()
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check(self) -> None:
        """ServerError if any server has ended."""
        for server in self.running:
            server.check()

    def _start(self) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        inherited = {key: value for key, value in os.environ.items() if key not in OVERRIDDEN}
        for plan in self._plans:
            log = self._logs / f"{plan.name}.log"
            try:
                command = installed(plan.command, inherited) if plan.peer else plan.command
            except PeerError as error:
                raise ServerError(f"{plan.name} cannot be started: {error}") from error
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**inherited, **plan.env},
                    start_new_session=True,
                )
            self.running.append(Running(plan, process, log))

    def _wait(self) -> None:
        start = time.monotonic()
        pending = list(self.running)
        with httpx.Client(trust_env=False, timeout=2) as client:
            while pending:
                waited = time.monotonic() - start
                self._waiting(waited)
                self.check()
                if waited > self._start_seconds:
                    server = pending[0]
                    raise ServerError(
                        f"{server.plan.name} was not ready after {waited:.0f} s; its log:\n{server.tail()}"
                    )
                pending = [server for server in pending if not _healthy(client, server.plan.url)]
                if pending:
                    time.sleep(0.25)

    def stop(self) -> None:
        """End every server and every process they started. A second Ctrl-C meanwhile is put off."""
        previous = None
        with suppress(ValueError):  # signals can only be set in the main thread; elsewhere none arrives
            previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            families = [(server, _family(server.process.pid)) for server in self.running]
            for server in self.running:
                if server.process.poll() is None:
                    server.process.terminate()
            deadline = time.monotonic() + STOP_SECONDS
            for server, family in families:
                with suppress(subprocess.TimeoutExpired):
                    server.process.wait(max(deadline - time.monotonic(), 0.1))
                with suppress(ProcessLookupError):  # the whole session has gone, as it should
                    os.killpg(server.process.pid, signal.SIGKILL)
                for process in family:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                server.process.wait()
            self.running = []
        finally:
            if previous is not None:
                signal.signal(signal.SIGINT, previous)


def _healthy(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/health").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _family(pid: int) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return children
