"""The memory an engine on CPU claims when the user does not say: half of what is free beside the weights.

vLLM claims 92 % of the machine for weights and KV cache, whatever the model's size
(vllm/v1/worker/cpu_worker.py): beside other programs it does not start, or it compiles for minutes and fails
then because somebody has taken memory meanwhile; and what it leaves is less than the server's own processes
need when requests are large.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

from orthrus.engine import compat

if TYPE_CHECKING:
    from orthrus.engine.compat import EngineArgs

SPACE = "VLLM_CPU_KVCACHE_SPACE"
RESERVE = 3 * 2**30
"""Bytes for the server's and the engine's processes and for what requests take on their way."""
LEAST = 0.1
"""Below this part of the memory vLLM's own error says best what is wrong."""


def leave_room(engine_args: EngineArgs) -> bool:
    """Lower `gpu_memory_utilization`, vLLM's name for it on CPU too, where it stands at vLLM's default.

    Returns whether the user left the choice to Orthrus, so that workers keep to `claim`.
    """
    default = type(engine_args).gpu_memory_utilization
    if not compat.current_platform.is_cpu() or engine_args.gpu_memory_utilization != default:
        return False
    if engine_args.kv_cache_memory_bytes is not None or os.environ.get(SPACE):
        return False
    memory = psutil.virtual_memory()
    free = (memory.available - RESERVE) / memory.total
    if LEAST < free < default:
        engine_args.gpu_memory_utilization = round(free, 3)
    return free > LEAST


def claim(workers: int) -> int:
    """Bytes for this process, its weights included, and its KV cache: `workers` share half of what is free.

    For a worker that has loaded its weights and not yet compiled: the other half is there for the compiler
    and for whoever else needs memory until the cache is allocated and filled.
    """
    consumed: int = psutil.Process().memory_info().rss
    available: int = psutil.virtual_memory().available
    return consumed + available // (2 * workers)
