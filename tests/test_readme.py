"""The code of README.md and docs/quickstart.md works: every Python and curl block runs against a real server,
and every other command exists."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import typer

from clean_environment import inherited
from orthrus.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/quickstart.md")
LINKED = (
    "README.md",
    "CHANGELOG.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)
ADDRESS = "localhost:8000"
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}


def blocks(language: str) -> list[pytest.param]:
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for i, match in enumerate(re.finditer(rf"^```{language}\n(.*?)^```", text, re.S | re.M)):
            found.append(pytest.param(match[1], id=f"{page}-{i}"))
    return found


def commands(program: str) -> list[str]:
    """The commands of all bash blocks that call `program`, continued lines joined."""
    lines = [line for block in blocks("bash") for line in block.values[0].replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.split()[0] == program]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server as the README starts it, on a free port and eager, so that it starts sooner."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (readme, *_) = commands("orthrus")
    command = [*shlex.split(readme)[1:], "--port", str(port), "--enforce-eager", "--dtype", "float32"]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "orthrus.cli", *command],
            env={**inherited(), **ENVIRONMENT},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while not answers(port):
            assert process.poll() is None, log.read_text()[-4000:]
            time.sleep(0.5)
        yield f"localhost:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://localhost:{port}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.engine
@pytest.mark.parametrize("command", commands("curl"))
def test_curl(command: str, address: str) -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            command.replace("curl ", "curl --fail-with-body --noproxy '*' ", 1).replace(ADDRESS, address),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if '"stream": true' in command:
        assert done.stdout.rstrip().endswith("data: [DONE]")
    elif "/metrics" in command:
        assert "orthrus:" in done.stdout
    else:
        assert json.loads(done.stdout)


@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.parametrize("code", blocks("python"))
def test_python(code: str, address: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(code.replace(ADDRESS, address))
    environment = {**inherited(), **ENVIRONMENT, "NO_PROXY": "localhost"}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False, timeout=540
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip()


def test_every_command_of_a_bash_block_is_known() -> None:
    known = {"make", "pip", "orthrus", "curl"}
    for block in blocks("bash"):
        for line in block.values[0].replace("\\\n", " ").splitlines():
            assert line.split()[0] in known, line


def test_make_targets_pip_extras_and_sub_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert commands("make")
    for line in commands("make"):
        assert set(line.split()[1:]) <= targets, line
    for line in commands("pip"):
        assert set(re.findall(r"\[(\w+)\]", line)) <= extras.keys(), line
    for line in commands("orthrus"):
        assert line.split()[1] in COMMANDS, line


def test_arguments_of_the_other_commands_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.jsonl").touch()
    parsed = []
    for line in commands("orthrus"):
        name, *arguments = shlex.split(line)[1:]
        target = COMMANDS[name].load()
        if not COMMANDS[name].raw and isinstance(target, typer.Typer):
            group = typer.main.get_group(target)
            context = group.make_context(f"orthrus {name}", arguments)
            _, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
            command.make_context(command.name, rest, parent=context)  # refuses what the command does not take
            parsed.append(f"{name} {command.name}")
    assert {"trace summary", "trace plot", "simulate fill", "bench quick", "bench paper"} <= set(parsed)


@pytest.mark.engine
def test_flags_of_serve_exist() -> None:
    from orthrus.server import flags, vllm_server

    for line in commands("orthrus"):
        name, *arguments = shlex.split(line)[1:]
        if name == "serve":
            parser = vllm_server.build_parser("orthrus serve")
            flags.add_flags(parser)
            assert parser.parse_args(arguments).model_tag == "smollm2"


@pytest.mark.parametrize("page", LINKED)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text()):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            linked = (ROOT / page).parent / path if path else ROOT / page
            assert linked.exists(), f"{page} links to {target}"
            assert not anchor or anchor in anchors(linked), f"{page} links to {target}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
