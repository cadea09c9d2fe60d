"""Which cores compute on a small machine: all of them.

vLLM keeps one core of a CPU machine for its engine process, because that process spins
(vllm/utils/ompmultiprocessing.py, `reserve_cpu_num`). Orthrus' naps while the worker computes
(`cpu_wait.py`), so on a few cores the one kept back would idle.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orthrus.engine import compat

if TYPE_CHECKING:
    from orthrus.engine.compat import EngineArgs

SWITCH = "VLLM_CPU_NUM_OF_RESERVED_CPU"
FEW_CORES = 4
"""With more, the core kept back is a small part, and one delayed thread would hold up many."""


def use_all(engine_args: EngineArgs) -> None:
    """Let the worker compute on every core of a small CPU machine, unless the user keeps some back.

    Engines of several workers, and those with a KV connector, which has threads of its own, stay as they are.
    """
    workers = engine_args.tensor_parallel_size * engine_args.pipeline_parallel_size
    if not compat.current_platform.is_cpu() or workers > 1 or engine_args.data_parallel_size > 1:
        return
    if engine_args.kv_transfer_config is None and len(os.sched_getaffinity(0)) <= FEW_CORES:
        os.environ.setdefault(SWITCH, "0")
