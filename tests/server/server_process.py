"""A real `orthrus serve` in a process group of its own, for the server tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil

from clean_environment import inherited

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
}
MAX_MODEL_LEN = 1024
FLAGS = ("--host", "127.0.0.1", "--enforce-eager", "--dtype", "float32", "--block-size", "32")


class Server:
    """`orthrus serve MODEL FLAGS` on a free loopback port; its output goes to `log`."""

    def __init__(
        self, log: Path, model: str | Path, *flags: str, key: str | None = None, env: Mapping[str, str] = {}
    ) -> None:
        self.log, self.key, self.port = log, key, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._output = log.open("w")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "orthrus.cli",
                "serve",
                str(model),
                *FLAGS,
                "--port",
                str(self.port),
                *flags,
            ],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**inherited(), **ENVIRONMENT, **env},
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.members():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=60)
        self._output.close()

    def wait_until_ready(self, timeout_s: float = 240) -> Server:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            assert self.process.poll() is None, self.tail()
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.2)
        raise AssertionError(f"the server did not start:\n{self.tail()}")

    def stop(self, sent: int = signal.SIGTERM) -> int:
        """Send the signal and return the exit status. Fails where a process of its session is left."""
        self.process.send_signal(sent)
        return self.wait()

    def wait(self, timeout_s: float = 90) -> int:
        """The exit status of a server that ends by itself. Fails where a process of its session is left."""
        status = self.process.wait(timeout=timeout_s)
        end = time.monotonic() + 20
        while (left := self.members()) and time.monotonic() < end:
            time.sleep(0.1)
        assert not left, f"left running: {left}\n{self.tail()}"
        return status

    def members(self) -> list[int]:
        """Process ids of the server's session, without zombies."""
        found = []
        for process in psutil.process_iter(["pid", "status"]):
            try:
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return found

    def engine_core(self) -> psutil.Process:
        """The process of vLLM's EngineCore."""
        cores = self._engine_cores()
        assert len(cores) == 1, cores
        return cores[0]

    def has_engine_core(self) -> bool:
        """Whether the engine's process has started (and may still be loading)."""
        return bool(self._engine_cores())

    def _engine_cores(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                title = " ".join([child.name(), *child.cmdline()])
            except psutil.NoSuchProcess:
                continue
            if "EngineCore" in title:
                found.append(child)
        return found

    def client(self, **kwargs: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.Client(base_url=self.url, timeout=120, headers=headers, **kwargs)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait_until_running(self, requests: int, timeout_s: float = 60) -> None:
        """Poll /orthrus/state until the scheduler holds that many requests."""
        end = time.monotonic() + timeout_s
        while (state := self.state())["scheduler"]["requests"] < requests:
            assert time.monotonic() < end, state
            time.sleep(0.05)

    def wait_until_idle(self, timeout_s: float = 30) -> dict[str, Any]:
        """Poll /orthrus/state until nothing is held; fails with what still is."""
        end = time.monotonic() + timeout_s
        while True:
            state = self.state()
            held = [state["scheduler"], *state["workers"]]
            if not any(count for counts in held for count in counts.values()):
                return state
            assert time.monotonic() < end, state
            time.sleep(0.1)

    def state(self) -> dict[str, Any]:
        with self.client() as client:
            answer: dict[str, Any] = client.get("/orthrus/state").json()
        return answer


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def serving(log: Path, model: str | Path, *flags: str, env: Mapping[str, str] = {}) -> Iterator[Server]:
    """A server that is ready. At the end it must hold nothing, and stop with status 0."""
    with Server(log, model, *flags, env=env) as started:
        started.wait_until_ready()
        yield started
        started.wait_until_idle()
        assert started.stop() == 0, started.tail()
