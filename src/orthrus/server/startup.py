"""A server that starts: where its processes leave their metrics, and how a signal ends it early."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

import psutil  # type: ignore[import-untyped]

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
STOPPED_STATUS = 130
STOPPED = "orthrus serve: stopped before it was ready\n"
# It ignores signals, and ends by itself once every process that shares it has gone.
RESOURCE_TRACKER = "multiprocessing.resource_tracker"
_metrics_folder: str | None = None


def share_metrics() -> None:
    """Give the engine's process and this one a common folder of metrics, so that /metrics shows both.

    prometheus_client looks for it when it is imported, so this comes before vLLM's import; vLLM's own
    `setup_multiprocess_prometheus` (v1/metrics/prometheus.py) would come too late for this process.
    """
    global _metrics_folder
    if METRICS_FOLDER not in os.environ:
        _metrics_folder = tempfile.mkdtemp(prefix="orthrus-metrics-")
        os.environ[METRICS_FOLDER] = _metrics_folder
        atexit.register(shutil.rmtree, _metrics_folder, ignore_errors=True)


def end_children(patience_s: float = 5) -> None:
    """Terminate every process that this one has started, and theirs; kill those that stay.

    An engine that is still starting does not notice that the server has gone, and may start its worker after
    it was told to end: so this looks again until nobody is left.
    """
    ending: set[psutil.Process] = set()
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        started = set(descendants()) - ending
        for child in started:
            with suppress(psutil.NoSuchProcess):
                child.terminate()
        ending |= started
        if not psutil.wait_procs(ending, timeout=0.05)[1]:
            break
    for child in ending | set(descendants()):
        with suppress(psutil.NoSuchProcess):
            child.kill()


def descendants() -> list[psutil.Process]:
    """The processes that this one and its children have started, but for Python's resource trackers."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if RESOURCE_TRACKER not in " ".join(child.cmdline()):
                found.append(child)
    return found


def stop_at_once_while_the_engine_starts() -> None:
    """Let SIGTERM and Ctrl-C end the server while it waits for its engine.

    vLLM's handler raises KeyboardInterrupt (launchers/api_server/entry.py), but the server waits in
    pyzmq's `poll`, which loses an exception raised in a handler: it would start up as if nothing had been
    sent. Ours takes over once the configuration stands, and gives way to those of the running server.
    Where vLLM watches several processes from a parent, the parent's handlers stay.
    """
    from orthrus.engine import compat

    create = compat.EngineArgs.create_engine_config

    @functools.wraps(create)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        vllm_config = create(self, *args, **kwargs)
        if self._api_process_rank == 0 and not kwargs.get("headless"):
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, _stop)
        return vllm_config

    compat.EngineArgs.create_engine_config = create_engine_config  # type: ignore[method-assign]


def _stop(_number: int, _frame: object) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    end_children()
    if _metrics_folder is not None:
        shutil.rmtree(_metrics_folder, ignore_errors=True)
    sys.stdout.flush()
    sys.stderr.write(STOPPED)
    sys.stderr.flush()
    os._exit(STOPPED_STATUS)  # an exception would be lost, and exit handlers would wait for the engine
