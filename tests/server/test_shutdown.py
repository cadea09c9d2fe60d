"""What open requests and calls are told when an engine dies or is stopped, with a stand-in for the client."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from orthrus.server import shutdown


def client(heard: list[Any], calls: dict[int, Any], requests: int = 1) -> Any:
    async def add_request(name: str) -> str:
        return name

    queue = SimpleNamespace(put=heard.append)
    made = SimpleNamespace(
        errored=False,
        add_request=add_request,
        output_processor=SimpleNamespace(
            request_states={number: SimpleNamespace(queue=queue) for number in range(requests)}
        ),
        engine_core=SimpleNamespace(utility_results=calls, _format_exception=lambda error: error),
    )

    def stop(timeout: float | None = None) -> None:
        made.errored = True  # as in vLLM, a stopped client counts as dead

    made.shutdown = stop
    return made


def app(*servers: Any) -> Any:
    return SimpleNamespace(state=SimpleNamespace(server=SimpleNamespace(servers=servers)))


async def test_a_dead_engine_is_503_and_its_processes_go(monkeypatch):
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(shutdown, "descendants", lambda: [shutdown.psutil.Process(worker.pid)])
    heard: list[Any] = []
    call = asyncio.get_running_loop().create_future()
    engine, args = client(heard, {1: call}), Namespace()
    shutdown.watch(engine, app(), args)
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
    shutdown.watch(engine, app(), args)
    engine.shutdown(timeout=0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [(error.http_status, str(error)) for error in heard] == [(503, shutdown.STOPPING)]
    assert not args.engine_failed
    assert not killed


async def test_each_open_request_has_an_error_of_its_own(monkeypatch):
    monkeypatch.setattr(shutdown, "descendants", list)
    heard: list[Any] = []
    engine = client(heard, {}, requests=3)
    shutdown.watch(engine, app(), Namespace())
    engine.output_processor.propagate_error(RuntimeError("vLLM's"))
    assert len({id(error) for error in heard}) == 3


async def test_a_request_on_its_way_to_an_engine_that_has_gone_is_503(monkeypatch):
    monkeypatch.setattr(shutdown, "descendants", list)
    for end, said in ((True, shutdown.STOPPING), (False, shutdown.ENGINE_DIED)):
        engine = client([], {})
        shutdown.watch(engine, app(), Namespace())
        assert await engine.add_request("first") == "first"
        if end:
            engine.shutdown()
        else:
            engine.errored = True
        with pytest.raises(shutdown.GracefulHTTPError, match=said.partition(";")[0]) as refused:
            await engine.add_request("second")
        assert refused.value.http_status == 503


async def test_a_stop_waits_until_the_server_has_read_what_had_arrived(monkeypatch):
    monkeypatch.setattr(shutdown, "descendants", list)
    engine, turns = client([], {}), []
    shutdown.watch(engine, app(), Namespace())
    loop = asyncio.get_running_loop()

    async def accept_and_read() -> None:
        for step in ("accepted", "read", "parsed"):
            await asyncio.sleep(0.005)
            turns.append(step)

    reading = asyncio.create_task(accept_and_read())
    await loop.run_in_executor(None, engine.shutdown)
    assert turns == ["accepted", "read", "parsed"]
    await reading
    engine.shutdown()  # on the loop itself it must not wait for the loop


async def test_a_stop_answers_who_has_connected_and_refuses_who_has_not(monkeypatch):
    monkeypatch.setattr(shutdown, "descendants", list)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    engine = client([], {})
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = await asyncio.start_server(answer, sock=listening.dup())
        address = listening.getsockname()
        shutdown.watch(engine, app(server), Namespace())
        with socket.create_connection(address) as early:
            early.sendall(b"before\n")
            stopping = asyncio.get_running_loop().run_in_executor(None, engine.shutdown)
            await stopping
            early.settimeout(10)
            assert early.recv(100) == b"before\n"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        server.close()


async def test_a_stop_is_no_crash_of_the_engine(monkeypatch):
    monkeypatch.setattr(shutdown, "descendants", list)
    engine, logged = client([], {}), []
    shutdown.watch(engine, app(), Namespace())

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
