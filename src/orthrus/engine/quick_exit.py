"""An engine's processes end without a last garbage collection.

At its exit Python looks through every object of torch and vLLM for cycles, several times. That takes longer
than vLLM waits for a worker (vllm/v1/executor/multiproc_executor.py, `_ensure_worker_termination`), so that
every stop on CPU ended in SIGKILL. vLLM does the same as here for ROCm (vllm/v1/engine/core.py).
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing


def install(*, server: bool = False) -> None:
    """Leave this process's objects alone when it exits, if it is a `server` or was started for an engine.

    An engine inside a user's own program must not change how that program ends. Safe to call twice.
    """
    if server or multiprocessing.parent_process() is not None:
        atexit.unregister(gc.freeze)
        atexit.register(gc.freeze)
