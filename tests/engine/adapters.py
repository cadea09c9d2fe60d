"""Random LoRA adapters for the tests, written straight from the shapes in the checkpoint's weight file."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
STRENGTH = 0.5
"""Frobenius norm of an adapter's update, relative to that of the weight it changes."""


def make_adapter(model_path: Path, out_dir: Path, rank: int, seed: int) -> Path:
    """Write a PEFT adapter on every linear layer of the checkpoint under `model_path`; return `out_dir`.

    The update is large on purpose (`STRENGTH`), so that a row served with the wrong adapter cannot pass
    for the right one. The same `seed` gives the same adapter.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(Path(model_path).glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 (safe_open is not a mapping)
                module = name.removesuffix(".weight")
                if module.rsplit(".", 1)[-1] not in TARGET_MODULES:
                    continue
                weight = weights.get_tensor(name).float()
                rows, columns = weight.shape
                lora_a = torch.randn(rank, columns, generator=generator)
                lora_b = torch.randn(rows, rank, generator=generator)
                lora_b *= STRENGTH * weight.norm() / (lora_b @ lora_a).norm()
                tensors[f"base_model.model.{module}.lora_A.weight"] = lora_a
                tensors[f"base_model.model.{module}.lora_B.weight"] = lora_b
    if not tensors:
        raise ValueError(f"{model_path} holds no safetensors weight named after one of {TARGET_MODULES}")

    out_dir.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out_dir / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model_path),
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGET_MODULES),
    }
    (out_dir / "adapter_config.json").write_text(json.dumps(config))
    return out_dir
