"""Engines in one process on one CPU core: what must be set before vLLM is imported, and the sample model."""

import os
from pathlib import Path


def bind(core: str) -> None:
    """Have the engines of this process run in it, on `core`; call before vLLM is imported."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = core
    # Else torch has as many threads as the machine has cores, all on this one.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def model_or_sample(model: Path | None) -> Path:
    """`model`, or the sample model's folder."""
    if model is not None:
        return model
    from orthrus.models import get

    return get("smollm2", lambda _stage: None)
