"""The whole demo against the fake server: its acts, its failures, and that nothing is left running."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from orthrus.demo import run
from orthrus.demo.answers import STATISTICS
from orthrus.demo.metrics import Counters
from orthrus.demo.questions import SHOWN
from orthrus.demo.report import Phase
from orthrus.demo.run import DemoOptions, run_demo
from orthrus.demo.server import ServerError
from orthrus.demo.view import LiveView, PlainView, View
from orthrus.retrieval.passages import load_passages
from orthrus.retrieval.store import VectorStore

FAKE = Path(__file__).with_name("fake_server.py")


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo-files")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def serve_with_fake(monkeypatch: pytest.MonkeyPatch, *extra: str) -> None:
    def command(_model: str, port: int, trace: Path) -> list[str]:
        return [sys.executable, str(FAKE), "--port", str(port), "--trace-steps", str(trace), *extra]

    monkeypatch.setattr(run, "serve_command", command)
    monkeypatch.setattr(run, "CHAT_SECONDS", 0.4)


def options(**changes: object) -> DemoOptions:
    values = {
        "model": "fake",
        "port": 0,
        "passages": 80,
        "chats": 2,
        "keep_vectors": None,
        "save_picture": None,
    }
    return DemoOptions(**{**values, **changes})  # type: ignore[arg-type]


def recording(view: type[PlainView] | type[LiveView], **settings: object) -> tuple[View, io.StringIO]:
    output = io.StringIO()
    return view(Console(file=output, width=200, **settings)), output  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "count"), [(30.0, 64), (10.0, 144), (1.0, 1440)])
def test_a_slow_machine_embeds_fewer_passages(seconds: float, count: int) -> None:
    phase = Phase(Counters(seconds, {}, {}), 32, (), ())
    assert run.affordable(phase) == count


def test_without_a_number_it_embeds_what_the_machine_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve_with_fake(monkeypatch)
    monkeypatch.setattr(run, "affordable", lambda _alone: 70)
    view, output = recording(PlainView)
    with view:
        asyncio.run(run_demo(options(passages=None), view))
    assert "Together: 70 passages" in output.getvalue()


def test_the_passages_asked_for_come_first() -> None:
    ids = [passage.id for passage in run.with_answers_first(load_passages())]
    assert set(ids[: len(SHOWN)]) == {question.passage_id for question in SHOWN}
    assert sorted(ids) == sorted(passage.id for passage in load_passages())


def alive(pid: int) -> bool:
    """Whether the process runs; one that has died but is not yet reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_demo_runs_to_its_end_in_plain_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve_with_fake(monkeypatch)
    view, output = recording(PlainView)
    folder, picture = tmp_path / "vectors", tmp_path / "images" / "demo.svg"
    with view:
        asyncio.run(run_demo(options(keep_vectors=folder, save_picture=picture), view))
    text = output.getvalue()
    assert "1/4 embeddings alone: " in text
    assert f"{run.SAMPLE} passages" in text
    assert "2/4 chats alone: " in text
    assert "3/4 both together: " in text
    assert "4/4 embeddings alone again: " in text
    assert text.count("Q: ") == 3
    assert re.search(r"Together: 80 passages \(1280 tokens\) embedded and [1-9]\d* tokens generated", text)
    mixed, steps = map(int, re.search(r"Steps: (\d+) of (\d+) ", text).groups())  # type: ignore[union-attr]
    assert 0 < mixed <= steps
    assert "\x1b[" not in text
    store = VectorStore(folder, 64)
    assert len(store) == 80
    statistics = np.load(folder / STATISTICS)
    assert statistics["mean"].shape == statistics["deviation"].shape == (64,)
    svg = picture.read_text()
    assert svg.startswith("<svg")
    # An SVG holds no plain spaces, and a line may break anywhere between words.
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", svg.replace("&#160;", " ")))
    assert "3/4 both together" in words
    assert re.search(r"\d+/80 passages", words)
    assert "@font-face" not in svg
    assert "url(http" not in svg
    assert "one after the other" in words


def test_the_demo_runs_to_its_end_in_a_live_view(
    monkeypatch: pytest.MonkeyPatch, own_temporary_folder: Path
) -> None:
    serve_with_fake(monkeypatch)
    view, output = recording(LiveView, force_terminal=True)
    with view:
        asyncio.run(run_demo(options(), view))
    text = output.getvalue()
    assert "full width: 256" in text
    assert "/80 passages" in text
    assert "Together: 80 passages" in text
    assert list(own_temporary_folder.iterdir()) == []


def test_a_server_that_cannot_start_shows_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    serve_with_fake(monkeypatch, "--fail-start")
    view, _ = recording(PlainView)
    with pytest.raises(ServerError, match=r"status 1; .*\n  the fake server cannot start: no such model"):
        asyncio.run(run_demo(options(), view))


def test_a_server_that_dies_midway_shows_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    serve_with_fake(monkeypatch, "--die-at-embedding", "3")
    view, _ = recording(PlainView)
    with pytest.raises(ServerError, match=r"status 7; .*\n  the fake engine has died"):
        asyncio.run(run_demo(options(), view))


def test_a_port_in_use_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> list[str]:
        raise AssertionError("the server must not be started")

    monkeypatch.setattr(run, "serve_command", never)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port} cannot be used.*--port"):
            asyncio.run(run_demo(options(port=port), recording(PlainView)[0]))


def test_an_interrupt_stops_the_server_and_all_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = tmp_path / "pid"
    serve_with_fake(monkeypatch, "--child", str(child))
    view, output = recording(PlainView)

    def interrupt() -> None:
        while "1/4" not in output.getvalue():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt), view:
        asyncio.run(run_demo(options(), view))
    # A child that ignores SIGTERM is gone too: SIGKILL was sent to the server's whole group.
    deadline = time.monotonic() + 10
    while alive(int(child.read_text())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(int(child.read_text()))
