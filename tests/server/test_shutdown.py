"""What open requests and calls are told when an engine dies or is stopped, with a stand-in for the client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from orthrus.server import shutdown


def client(heard: list[Any], calls: dict[int, Any]) -> Any:
    made = SimpleNamespace(
        errored=False,
        output_processor=SimpleNamespace(propagate_error=heard.append),
        engine_core=SimpleNamespace(utility_results=calls, _format_exception=lambda error: error),
    )

    def stop(timeout: float | None = None) -> None:
        made.errored = True  # as in vLLM, a stopped client counts as dead

    made.shutdown = stop
    return made


async def test_a_dead_engine_is_503_and_its_processes_go(monkeypatch):
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(shutdown, "descendants", lambda: [shutdown.psutil.Process(worker.pid)])
    heard: list[Any] = []
    call = asyncio.get_running_loop().create_future()
    engine, args = client(heard, {1: call}), Namespace()
    shutdown.watch(engine, args)
    engine.errored = True
    engine.output_processor.propagate_error(RuntimeError("vLLM's"))
    assert [(error.http_status, str(error)) for error in heard] == [(503, shutdown.ENGINE_DIED)]
    with pytest.raises(type(heard[0]), match="engine has died"):
        await call
    assert worker.wait(timeout=60) == -9
    engine.shutdown()
    assert args.engine_failed


async def test_a_stopped_engine_is_503_and_its_processes_end_by_themselves(monkeypatch):
    killed: list[str] = []
    monkeypatch.setattr(
        shutdown, "descendants", lambda: [SimpleNamespace(kill=lambda: killed.append("killed"))]
    )
    heard: list[Any] = []
    engine, args = client(heard, {}), Namespace()
    shutdown.watch(engine, args)
    engine.shutdown(timeout=0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [(error.http_status, str(error)) for error in heard] == [(503, shutdown.STOPPING)]
    assert not args.engine_failed
    assert not killed


async def test_a_stop_is_no_crash_of_the_engine(monkeypatch):
    monkeypatch.setattr(shutdown, "descendants", list)
    engine, logged = client([], {}), []
    shutdown.watch(engine, Namespace())

    async def handle_outputs() -> None:
        """As in vLLM (v1/engine/async_llm.py and core_client.py)."""
        try:
            raise engine.engine_core._format_exception(RuntimeError("dead")) from None
        except RuntimeError as error:
            logged.append(str(error))

    await handle_outputs()
    assert logged == ["dead"]
    engine.shutdown(timeout=0)
    with pytest.raises(asyncio.CancelledError):
        await handle_outputs()
    assert logged == ["dead"]
