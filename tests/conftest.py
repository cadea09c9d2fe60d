"""A test whose fixtures load a model or start a real server gets the `engine` mark without saying so."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# A shell starts its background jobs with SIGINT ignored, and every process here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Left alone, vLLM would let the engines of all test processes compute on the same core.
_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_cores = sorted(os.sched_getaffinity(0))
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", str(_cores[_process % len(_cores)]))

FOLDERS = {Path(__file__).parent / name for name in ("engine", "server")}
FIXTURES = {"engine", "stock_engine", "sample_model", "tiny_model", "server", "fragile"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent in FOLDERS and FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("engine")
