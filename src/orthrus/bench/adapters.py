"""LoRA adapters for benchmarks and tests: random weights of a rank on every linear layer of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from orthrus.bench.spec import Adapter, SpecError

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What `--max-lora-rank` may be (vllm/config/lora.py)."""
CONFIG = "adapter_config.json"
STRENGTH = 0.05
"""Norm of a random update relative to its weight's. Tests that tell adapters apart ask for more."""


def folders(adapters: Mapping[str, Adapter], base: Path) -> dict[str, Path]:
    """Served name to adapter folder; random adapters lie below `base`, whether they are there yet or not."""
    return {name: (adapter.path or base / name).resolve() for name, adapter in adapters.items()}


def prepare(adapters: Mapping[str, Adapter], model: str, base: Path) -> None:
    """Write the random adapters that are missing; SpecError for a path that holds no adapter."""
    for name, folder in folders(adapters, base).items():
        rank = adapters[name].rank
        if rank is not None:
            random_adapter(Path(model), rank, folder)
        elif not (folder / CONFIG).is_file():
            raise SpecError(f"server.adapters.{name}: {folder} holds no {CONFIG}")


def lora_flags(adapters: Mapping[str, Adapter], base: Path) -> list[str]:
    """vLLM's flags to serve the adapters, all of them at once; none for no adapters."""
    if not adapters:
        return []
    found = folders(adapters, base)
    rank = max(adapter.rank or _rank_of(found[name]) for name, adapter in adapters.items())
    allowed = [allowed for allowed in VLLM_RANKS if allowed >= rank]
    if not allowed:
        raise SpecError(f"server.adapters: rank {rank}, vLLM serves at most {VLLM_RANKS[-1]}")
    return [
        "--enable-lora",
        f"--max-loras={len(adapters)}",
        f"--max-lora-rank={allowed[0]}",
        "--lora-modules",
        *(f"{name}={path}" for name, path in found.items()),
    ]


def _rank_of(folder: Path) -> int:
    return int(json.loads((folder / CONFIG).read_text(encoding="utf-8"))["r"])


def random_adapter(
    checkpoint: Path, rank: int, folder: Path, seed: int = 0, strength: float = STRENGTH
) -> Path:
    """Write a PEFT adapter with random weights for every `*_proj` matrix; returns `folder`.

    A is [rank, in] and B [out, rank], float32, normal; B is scaled so that the update B A has `strength`
    times the Frobenius norm of the weight it changes. The same `seed` gives the same adapter; one that is
    in `folder` already stays. SpecError when the checkpoint is no local folder of safetensors.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    config = folder / CONFIG
    if config.is_file():
        return folder
    files = sorted(Path(checkpoint).glob("*.safetensors"))
    if not files:
        raise SpecError(
            f"server.adapters: {checkpoint} holds no *.safetensors; give adapters by path instead"
        )
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    modules = set()
    for file in files:
        with safe_open(file, "pt") as weights:
            for key in weights.keys():  # noqa: SIM118  (safe_open is no mapping)
                if not key.endswith("_proj.weight"):
                    continue
                weight = weights.get_tensor(key).float()
                out, width = weight.shape
                lora_a = torch.randn(rank, width, generator=generator)
                lora_b = torch.randn(out, rank, generator=generator)
                # The norm of B A from two small Gram matrices: |B A|^2 = tr(B'B A A').
                norm = ((lora_b.T @ lora_b) * (lora_a @ lora_a.T)).sum().sqrt()
                base = f"base_model.model.{key.removesuffix('.weight')}"
                tensors[f"{base}.lora_A.weight"] = lora_a
                tensors[f"{base}.lora_B.weight"] = lora_b * (strength * weight.norm() / norm)
                modules.add(key.split(".")[-2])
    if not tensors:
        raise SpecError(f"server.adapters: {checkpoint} has no *_proj weights to adapt")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    document = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(checkpoint),
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(modules),
    }
    config.write_text(json.dumps(document, indent=2))
    return folder
