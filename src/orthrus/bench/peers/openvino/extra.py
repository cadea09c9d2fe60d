"""The optional packages of the OpenVINO adapter, and the folder it serves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

GENERATE, EMBED = "generate", "embed"
PARTS = (GENERATE, EMBED)
"""Folders of an exported model, one from each `optimum-cli export openvino`."""

PRECISIONS = {"bfloat16": "bf16", "float32": "f32"}


class AdapterError(RuntimeError):
    """The adapter cannot start; the message says what is missing and how to get it."""


def load(name: str) -> Any:
    """Import an optional module; AdapterError names the extra that has it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise AdapterError(
            f"the OpenVINO adapter needs {name}: pip install 'vllm-orthrus[openvino]' ({error})"
        ) from error


def check_model(folder: Path) -> None:
    """AdapterError unless `folder` holds both exports with their tokenizers."""
    for part in PARTS:
        wanted = ["openvino_model.xml", "openvino_tokenizer.xml"]
        wanted += ["openvino_detokenizer.xml"] if part == GENERATE else []
        missing = [name for name in wanted if not (folder / part / name).is_file()]
        if missing:
            raise AdapterError(
                f"{folder / part} lacks {', '.join(missing)}; "
                "docs/benchmarking.md says how to export a model (section Peers)"
            )


@contextmanager
def bound(cores: Sequence[int]) -> Iterator[None]:
    """Processes started inside are bound to `cores` from their first thread on; the caller is freed after it.

    A process that binds itself later is too late: OpenVINO's threading takes the union of the cores that any
    thread of its process may use, and binds its own threads to that.
    """
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise AdapterError(f"--cores {cores}: this machine allows {sorted(before)}") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def properties(dtype: str, cores: int) -> dict[str, Any]:
    """OpenVINO's properties for one stream of `cores` threads that computes, and keeps its cache, in `dtype`.

    The KV cache is 8-bit unless told otherwise. Binding is ours (`bound`).
    AdapterError for a dtype that is not in PRECISIONS.
    """
    if dtype not in PRECISIONS:
        raise AdapterError(f"--dtype {dtype}: allowed are {', '.join(PRECISIONS)}")
    precision = PRECISIONS[dtype]
    return {
        "INFERENCE_NUM_THREADS": cores,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
    }
