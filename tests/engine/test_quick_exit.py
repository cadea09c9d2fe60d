"""A server and an engine's processes leave their objects alone at exit; a user's program does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, gc, multiprocessing, sys
from orthrus.engine import quick_exit

def run():
    atexit.register(lambda: print("frozen" if gc.get_freeze_count() else "collected"))
    quick_exit.install(server=sys.argv[1] == "server")
    quick_exit.install()

if __name__ == "__main__":
    if sys.argv[1] == "child":
        child = multiprocessing.get_context("spawn").Process(target=run)
        child.start()
        child.join()
        sys.exit(child.exitcode)
    run()
"""


@pytest.mark.parametrize(
    ("process", "end"), [("child", "frozen"), ("server", "frozen"), ("program", "collected")]
)
def test_only_an_engines_own_processes_end_without_a_collection(tmp_path, process, end):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, script, process], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == f"{end}\n"
