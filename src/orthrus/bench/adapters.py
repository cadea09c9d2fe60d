"""LoRA adapters for benchmarks: random weights of a rank on every linear layer of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from orthrus.bench.spec import Adapter, SpecError

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What `--max-lora-rank` may be (vllm/config/lora.py)."""
CONFIG = "adapter_config.json"


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


def random_adapter(checkpoint: Path, rank: int, folder: Path, seed: int = 0) -> Path:
    """Write a PEFT adapter with small random weights for every `*_proj` matrix; returns `folder`.

    A [rank, in] and B [out, rank] are float32 normal with deviation 1/sqrt(in) and 0.01: the outputs move,
    the work is that of any adapter. SpecError when the checkpoint is no local folder of safetensors.
    """
    from safetensors import safe_open
    from safetensors.numpy import save_file

    config = folder / CONFIG
    if config.is_file():
        return folder
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise SpecError(
            f"server.adapters: {checkpoint} holds no *.safetensors; give adapters by path instead"
        )
    rng = np.random.default_rng([seed, rank])
    tensors: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = {}
    modules = set()
    for file in files:
        with safe_open(file, "np") as weights:
            for key in weights.keys():  # noqa: SIM118  (safe_open is no mapping)
                if not key.endswith("_proj.weight"):
                    continue
                out, width = weights.get_slice(key).get_shape()
                base = f"base_model.model.{key.removesuffix('.weight')}"
                draw = rng.standard_normal
                tensors[f"{base}.lora_A.weight"] = draw((rank, width), np.float32) / np.float32(width**0.5)
                tensors[f"{base}.lora_B.weight"] = draw((out, rank), np.float32) * np.float32(0.01)
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
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(modules),
    }
    config.write_text(json.dumps(document, indent=2))
    return folder
