"""How an engine's processes end: without a last garbage collection, and with the program that started them.

At its exit Python looks through every object of torch and vLLM for cycles, several times. That takes longer
than vLLM waits for a worker (vllm/v1/executor/multiproc_executor.py, `_ensure_worker_termination`), so that
every stop on CPU ended in SIGKILL. vLLM does the same as here for ROCm (vllm/v1/engine/core.py).

Ctrl-C is the program's to answer, and not its engine's.

vLLM's workers notice when the engine's process has gone (`monitor_death_pipe`), but that process waits for
requests for ever when its server or program was killed, and holds the weights and the KV cache.
"""

from __future__ import annotations

import atexit
import functools
import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.process import BaseProcess

logger = logging.getLogger("vllm.orthrus")

ENGINE = "EngineCore"
WORKER = "VllmWorker"
"""How the names of vLLM's processes begin (vllm/v1/engine/utils.py, v1/executor/multiproc_executor.py)."""
PATIENCE_S = 30.0
"""For an engine to end in order after its program has gone; a step may have to end first."""


def install(*, server: bool = False) -> None:
    """Settle how this process ends, if it is a `server` or was started for an engine. Safe to call twice.

    An engine inside a user's own process must not change how that one ends.
    """
    parent, name = multiprocessing.parent_process(), multiprocessing.current_process().name
    is_engines = parent is not None and name.startswith((ENGINE, WORKER))
    if server or is_engines:
        atexit.unregister(gc.freeze)
        atexit.register(gc.freeze)
    if is_engines:
        # A terminal sends it to all, and an engine that ended before its program would count as dead.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if parent is not None and name.startswith(ENGINE):
        _end_with(parent)


@functools.cache
def _end_with(parent: BaseProcess) -> None:
    threading.Thread(target=_wait_and_end, args=(parent,), name="orthrus-parent", daemon=True).start()


def _wait_and_end(parent: BaseProcess) -> None:
    parent.join()
    logger.warning("The program that started this engine has gone, so the engine ends")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)
    os._exit(1)
