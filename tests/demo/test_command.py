"""The command line of the demo: refusals, exit statuses, and its end by SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from orthrus.demo import run
from orthrus.demo.command import INTERRUPTED, demo

FAKE = Path(__file__).with_name("fake_server.py")

SCRIPT = f"""
import sys
from orthrus.cli import run_with_typer
from orthrus.demo import command, run

def fake(model, port, trace):
    child = sys.argv[1]
    return [sys.executable, {str(FAKE)!r}, "--port", str(port), "--trace-steps", str(trace), "--child", child]

run.serve_command = fake
run_with_typer("demo", command.demo, ["--model", "fake"])
"""


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(demo)
    return CliRunner().invoke(app, ["--model", "fake", *arguments])


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> list[str]:
        raise AssertionError("no server must be started")

    monkeypatch.setattr(run, "serve_command", never)


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--passages", "9999"], "9999 passages asked for"),
        (["--passages", "1"], "greater than or equal to 2"),
        (["--chats", "0"], "greater than or equal to 1"),
        (["--port", "70000"], "less than or equal to 65535"),
    ],
)
def test_impossible_options_are_refused(arguments: list[str], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())


@pytest.mark.usefixtures("no_server")
def test_vectors_are_not_written_into_a_folder_in_use(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("keep me")
    result = invoke("--keep-vectors", str(tmp_path))
    assert result.exit_code == 2
    assert "not an empty" in " ".join(result.output.replace("│", " ").split())


def test_a_failing_server_ends_the_command_with_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def command(_model: str, port: int, trace: Path) -> list[str]:
        return [sys.executable, str(FAKE), "--port", str(port), "--trace-steps", str(trace), "--fail-start"]

    monkeypatch.setattr(run, "serve_command", command)
    result = invoke("--plain")
    assert result.exit_code == 1
    assert "The demo failed: the server ended with status 1" in result.output
    assert "no such model" in result.output
    (log,) = tmp_path.iterdir()
    assert str(log) in result.output
    assert "no such model" in log.read_text()


def test_sigterm_ends_the_demo_and_its_server(tmp_path: Path) -> None:
    child = tmp_path / "pid"
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(child)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "1/4" in line:
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stdout.read()
        assert process.wait(60) == INTERRUPTED
    assert "nothing is left running" in rest
    stat = Path(f"/proc/{child.read_text()}/stat")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and running(stat):
        time.sleep(0.02)
    assert not running(stat)


def running(stat: Path) -> bool:
    """Whether the process behind this /proc file runs; one that is dead but not reaped does not."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
