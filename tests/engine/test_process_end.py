"""A server and an engine's processes leave their objects alone at exit; an engine ends with its program."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

PROGRAM = """
import atexit, gc, multiprocessing, sys, time
from orthrus.engine import process_end

def run():
    atexit.register(lambda: print("frozen" if gc.get_freeze_count() else "collected"))
    process_end.install(server=sys.argv[1] == "server")
    process_end.install()
    if sys.argv[2:] == ["stay"]:
        print("waits", flush=True)
        time.sleep(300)

if __name__ == "__main__":
    if "server" in sys.argv or "program" in sys.argv:
        run()
    else:
        child = multiprocessing.get_context("spawn").Process(target=run, name=sys.argv[1])
        child.start()
        child.join()
        sys.exit(child.exitcode)
"""
ENDS = {
    "EngineCore_DP0": "frozen",
    "VllmWorker-0": "frozen",
    "server": "frozen",
    "program": "collected",
    "Process-1": "collected",
}


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@contextmanager
def started(program, process):
    """The program and its child, which stays for minutes."""
    with subprocess.Popen(
        [sys.executable, program, process, "stay"], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "waits\n"
        (child,) = [
            each
            for each in psutil.Process(run.pid).children()
            if "resource_tracker" not in " ".join(each.cmdline())
        ]
        try:
            yield run, child
        finally:
            if child.is_running():
                child.kill()


def assert_ends(child, ends):
    if ends:
        child.wait(60)
    else:
        with pytest.raises(psutil.TimeoutExpired):
            child.wait(1)


@pytest.mark.parametrize("process", ENDS)
def test_only_an_engines_own_processes_end_without_a_collection(program, process):
    done = subprocess.run(
        [sys.executable, program, process], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == f"{ENDS[process]}\n"


@pytest.mark.parametrize(
    ("process", "ends"), [("EngineCore", False), ("VllmWorker-0", False), ("Process-1", True)]
)
def test_ctrl_c_is_not_for_an_engines_processes(program, process, ends):
    with started(program, process) as (run, child):
        child.send_signal(signal.SIGINT)
        assert_ends(child, ends)
        run.kill()


@pytest.mark.parametrize(("process", "ends"), [("EngineCore", True), ("Process-1", False)])
def test_an_engine_whose_program_was_killed_ends(program, process, ends):
    with started(program, process) as (run, child):
        run.kill()
        assert_ends(child, ends)
