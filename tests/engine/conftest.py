"""Engines for the tests: in this process, eager, float32, on a random tiny model or the sample model."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

# Before vLLM is imported: its engine core in this process, one thread, a small KV cache.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

Engine = Callable[..., Any]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from engine_driver import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def sample_model() -> Path:
    from orthrus import models

    return Path(models.get("smollm2"))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Start an Orthrus engine: `engine(model, policy="ibs", policy_options=..., **engine_arguments)`.

    `settings` are further fields of OrthrusConfig.
    """
    started: dict[str, Any] = {}

    def start(
        model: Path,
        policy: str = "fcfs",
        policy_options: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        settings = {"policy": policy, "policy_options": policy_options or {}, **(settings or {})}
        return _start(started, model, additional_config={"orthrus": settings}, **kwargs)

    yield start
    _stop(started)


@pytest.fixture(scope="module")
def stock_engine() -> Iterator[Engine]:
    """Start vLLM as it is, for the reference: `stock_engine(model, **engine_arguments)`."""
    started: dict[str, Any] = {}
    yield lambda model, **kwargs: _start(started, model, **kwargs)
    _stop(started)


def _start(started: dict[str, Any], model: Path, **kwargs: Any) -> Any:
    import torch
    from vllm import LLM

    key = repr((str(model), sorted(kwargs.items(), key=lambda item: item[0])))
    if key not in started:
        torch.set_num_threads(1)
        defaults: dict[str, Any] = {
            "enforce_eager": True,
            "dtype": "float32",
            "block_size": 32,
            "max_model_len": 512,
            "max_num_batched_tokens": 128,
            "max_num_seqs": 32,
            "num_gpu_blocks_override": 256,
            "disable_log_stats": True,
            "seed": 0,
        }
        started[key] = LLM(str(model), **(defaults | kwargs))
    return started[key]


def _stop(started: dict[str, Any]) -> None:
    # vLLM collects garbage twice for every engine that it shuts down, seconds each time; once does for all.
    with patch("gc.collect"):
        while started:
            _, llm = started.popitem()
            llm.llm_engine.engine_core.shutdown()
            del llm
    gc.collect()
