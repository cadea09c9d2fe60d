"""The memory that an engine on CPU claims when the user does not say: what is free, less a reserve.

vLLM claims 92 % of the machine for weights and KV cache, whatever the model's size
(vllm/v1/worker/cpu_worker.py): beside other programs it does not start, and what it leaves is less than the
server's own processes need when requests are large.
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


def leave_room(engine_args: EngineArgs) -> None:
    """Lower `gpu_memory_utilization`, vLLM's name for it on CPU too, where it stands at vLLM's default."""
    default = type(engine_args).gpu_memory_utilization
    if not compat.current_platform.is_cpu() or engine_args.gpu_memory_utilization != default:
        return
    if engine_args.kv_cache_memory_bytes is not None or os.environ.get(SPACE):
        return
    memory = psutil.virtual_memory()
    free = (memory.available - RESERVE) / memory.total
    if LEAST < free < default:
        engine_args.gpu_memory_utilization = round(free, 3)
