"""The dtype of an engine on a processor that only emulates bfloat16: float32, unless the user chose.

Without AVX-512 every bfloat16 operand is converted in software (`linear_cpu.py`), which costs more than the
memory it saves as soon as a step holds more than a few rows. vLLM takes the checkpoint's dtype all the
same (vllm/config/model.py, `_resolve_auto_dtype`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedConfig

from orthrus.engine import compat

if TYPE_CHECKING:
    from orthrus.engine.compat import EngineArgs

logger = logging.getLogger("vllm.orthrus")

QUANTIZED = ("quantization_config", "compression_config")
"""Keys of a checkpoint's config.json whose kernels ask for a dtype of their own."""


def emulates_bfloat16() -> bool:
    """Whether the model runs on an x86 processor with AVX2 and no AVX-512."""
    return compat.current_platform.is_cpu() and torch.backends.cpu.get_cpu_capability() == "AVX2"


def choose(engine_args: EngineArgs) -> None:
    """Set `dtype` to float32 where it is "auto", bfloat16 is emulated and the checkpoint is not quantised."""
    if engine_args.dtype != "auto" or engine_args.quantization or not emulates_bfloat16():
        return
    try:
        found, _ = PreTrainedConfig.get_config_dict(engine_args.model, revision=engine_args.revision)
    except (OSError, ValueError):
        return  # vLLM says better what is wrong with the model
    if not found or any(key in found for key in QUANTIZED):
        return
    engine_args.dtype = "float32"
    logger.warning(
        "This processor emulates bfloat16, so the model runs in float32: faster for prompts and embeddings, "
        "and more exact, in twice the memory. --dtype bfloat16 keeps the smaller weights."
    )
