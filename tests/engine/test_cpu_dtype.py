"""The dtype without `--dtype`: float32 only where bfloat16 is emulated and the checkpoint allows it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from orthrus.engine import compat, cpu_dtype
from orthrus.engine.compat import EngineArgs


def dtype_of(monkeypatch, folder: Path, *, capability="AVX2", cpu=True, config=None, **arguments) -> str:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **(config or {})}))
    monkeypatch.setattr(compat, "current_platform", SimpleNamespace(is_cpu=lambda: cpu))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    chosen = EngineArgs(model=str(folder), **arguments)
    cpu_dtype.choose(chosen)
    return str(chosen.dtype)


def test_emulated_bfloat16_gives_way_to_float32(monkeypatch, tmp_path):
    assert dtype_of(monkeypatch, tmp_path, config={"dtype": "bfloat16"}) == "float32"


@pytest.mark.parametrize(
    "case",
    [
        {"capability": "AVX512"},
        {"capability": "DEFAULT"},
        {"cpu": False},
        {"quantization": "awq"},
        {"config": {"quantization_config": {"quant_method": "gptq"}}},
    ],
    ids=str,
)
def test_elsewhere_and_for_quantised_weights_vllm_decides(monkeypatch, tmp_path, case):
    assert dtype_of(monkeypatch, tmp_path, **case) == "auto"


@pytest.mark.parametrize("asked", ["bfloat16", "float16", "float32"])
def test_what_the_user_asks_for_stays(monkeypatch, tmp_path, asked):
    assert dtype_of(monkeypatch, tmp_path, dtype=asked) == asked


def test_a_model_that_cannot_be_read_is_left_to_vllm(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(compat, "current_platform", SimpleNamespace(is_cpu=lambda: True))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    arguments = EngineArgs(model=str(tmp_path))
    cpu_dtype.choose(arguments)
    assert arguments.dtype == "auto"
