"""What a device can do at most, measured, and what part of it a run's counted work was.

`python -m orthrus.bench.ceiling cpu 0 float32` measures in a process of its own, bound to the device: matrix
products in the engines' dtype for FLOP/s, a sum over a large array for bytes/s. Utilisation counts work from
outside the engine: two FLOPs per weight and token (attention left out), and one read of the weights per step
(KV cache left out), so both are lower bounds.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from orthrus.bench.spec import Devices

MATRIX = {"cpu": 1536, "gpu": 8192}
BYTES = {"cpu": 2**29, "gpu": 2**32}
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of the safetensors types that an engine converts to its own dtype."""
OTHERS = {"I64": 8, "I32": 4, "I16": 2}
"""Bytes of those that it reads as they are stored; any other has one."""
SERVED = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
SECONDS = 2.0


@dataclass(frozen=True)
class Ceiling:
    """Best rates of one device: FLOP/s in `dtype` and bytes/s read from memory."""

    flops_per_s: float
    bytes_per_s: float
    dtype: str


@dataclass(frozen=True)
class ModelSize:
    """Weights of a checkpoint. `head`: the LM head's part (the token embedding's, where they are tied).

    `bytes` is what a step reads of them, in the dtype that they are served in.
    """

    weights: int
    head: int
    bytes: int

    @property
    def body(self) -> int:
        """Weights that every token passes: neither token embedding nor LM head."""
        return self.weights - self.head


def model_size(folder: Path, dtype: str) -> ModelSize | None:
    """Sizes of a local checkpoint served in `dtype`, by its safetensors headers; None if there are none."""
    from safetensors import safe_open

    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "np") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (safe_open is no mapping)
                tensor = tensors.get_slice(name)
                counts[name] = math.prod(tensor.get_shape())
                sizes[name] = counts[name] * _item_bytes(tensor.get_dtype(), dtype)
    if not counts:
        return None
    embedding = next((name for name in counts if name.endswith("embed_tokens.weight")), None)
    head = next((name for name in counts if name.endswith("lm_head.weight")), None)
    if head is not None and embedding is not None:
        # An untied token embedding is looked up, not multiplied: it is no work, and not read in full.
        del counts[embedding], sizes[embedding]
    return ModelSize(sum(counts.values()), counts.get(head or embedding or "", 0), sum(sizes.values()))


def _item_bytes(stored: str, dtype: str) -> int:
    """Bytes of an element of a safetensors type when it is served in `dtype` ("auto": as stored)."""
    if stored in FLOATS:
        return SERVED.get(dtype, FLOATS[stored])
    return OTHERS.get(stored, 1)


def utilisation(
    figures: dict[str, float], devices: int, size: ModelSize, ceiling: Ceiling
) -> dict[str, float]:
    """Part of the devices' ceilings that a cell's counted work was.

    Needs the token rates of `summarise` and, for bandwidth, `steps_per_s` over all engines.
    """
    tokens = (
        figures["embedded_tokens_per_s"] + figures["prefilled_tokens_per_s"] + figures["decoded_tokens_per_s"]
    )
    flops = 2 * (tokens * size.body + figures["decoded_tokens_per_s"] * size.head)
    result = {"flop_utilisation": flops / (devices * ceiling.flops_per_s)}
    if "steps_per_s" in figures:
        result["bandwidth_utilisation"] = (
            figures["steps_per_s"] * size.bytes / (devices * ceiling.bytes_per_s)
        )
    return result


def measured(devices: Devices, dtype: str, folder: Path) -> Ceiling:
    """The first device's ceiling in `dtype`, from `folder`/ceiling.json or measured now and kept there."""
    path = folder / "ceiling.json"
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept.get("dtype") == dtype:
            return Ceiling(**kept)
    device = str(devices.ids[0])
    own = {"OMP_NUM_THREADS": "1"} if devices.kind == "cpu" else {"CUDA_VISIBLE_DEVICES": device}
    command = [sys.executable, "-m", "orthrus.bench.ceiling", devices.kind, device, dtype]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=True)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(done.stdout, encoding="utf-8")
    return Ceiling(**json.loads(done.stdout))


def main(kind: str, device: str, dtype: str) -> None:
    """Measure and print a Ceiling as JSON."""
    import torch

    if kind == "cpu":
        os.sched_setaffinity(0, {int(device)})
    where = "cpu" if kind == "cpu" else "cuda"
    side, size = MATRIX[kind], BYTES[kind]
    # "auto" is the checkpoint's own dtype: bfloat16, as most are.
    left = torch.randn(side, side, device=where).to(getattr(torch, dtype, torch.bfloat16))
    long = torch.ones(size // 4, dtype=torch.float32, device=where)

    def settle() -> None:
        if where == "cuda":
            torch.cuda.synchronize()

    def multiply() -> None:
        torch.matmul(left, left)

    flops = 2 * side**3 / _fastest(multiply, settle)
    ceiling = Ceiling(flops, size / _fastest(lambda: long.sum(), settle), dtype)
    sys.stdout.write(json.dumps(asdict(ceiling)) + "\n")


def _fastest(work: Callable[[], object], settle: Callable[[], None]) -> float:
    """Seconds of the fastest repetition: a ceiling is what the device can do undisturbed."""
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        work()
        settle()
        best = min(best, time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main(*sys.argv[1:])
