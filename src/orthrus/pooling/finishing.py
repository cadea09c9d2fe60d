"""From pooled vectors to answers: projection layers, fewer dimensions, L2 norm, and a check for NaN."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from orthrus.pooling.errors import PoolingConfigError, PoolingStateError
from orthrus.pooling.select import DenseSpec


@dataclass(frozen=True, slots=True)
class Finished:
    """`vectors`: float32, one [dimensions] each; `nonfinite`: the indices of those with a NaN or infinity."""

    vectors: list[Tensor]
    nonfinite: list[int]


class DenseLayer:
    """A sentence-transformers Dense module in float32: activation(x W' + b), plus x if residual."""

    def __init__(self, spec: DenseSpec, device: torch.device | str = "cpu") -> None:
        """Loads the weights beside the module's config. Raises PoolingConfigError."""
        self.in_features, self.out_features = spec.in_features, spec.out_features
        self._activation = _activation(spec)
        weights = _load_weights(spec)
        shapes: dict[str, tuple[int, ...]] = {"linear.weight": (spec.out_features, spec.in_features)}
        if spec.bias:
            shapes["linear.bias"] = (spec.out_features,)
        if spec.residual and spec.in_features != spec.out_features:
            shapes["residual.weight"] = (spec.out_features, spec.in_features)
        found = {name: tuple(weight.shape) for name, weight in weights.items()}
        if found != shapes:
            raise PoolingConfigError(f"{spec.path}: the weights should be {shapes}, the file has {found}")
        tensors = {name: weight.to(device, torch.float32) for name, weight in weights.items()}
        self._weight, self._bias = tensors["linear.weight"], tensors.get("linear.bias")
        self._has_residual, self._residual = spec.residual, tensors.get("residual.weight")

    @torch.no_grad()
    def __call__(self, vectors: Tensor) -> Tensor:
        """float32 [k, in_features] -> float32 [k, out_features]."""
        if vectors.shape[1] != self.in_features:
            raise PoolingStateError(
                f"the projection takes vectors of {self.in_features}, the pooled ones have {vectors.shape[1]}"
            )
        out: Tensor = self._activation(nn.functional.linear(vectors, self._weight, self._bias))
        if self._has_residual:
            out = out + (vectors if self._residual is None else nn.functional.linear(vectors, self._residual))
        return out


def check_dimensions(dimensions: int | None, native: int, *, may_truncate: bool) -> None:
    """Refuse a request's `dimensions` before any compute: PoolingConfigError with the allowed range.

    The native size is always allowed; smaller ones only where the operator says so (`may_truncate`).
    """
    if dimensions is None or dimensions == native:
        return
    if not may_truncate:
        raise PoolingConfigError(f"dimensions must be {native} (this model's size), not {dimensions}")
    if not 1 <= dimensions <= native:
        raise PoolingConfigError(f"dimensions must be between 1 and {native}, not {dimensions}")


@torch.no_grad()
def finish_vectors(
    pooled: Tensor,
    layers: Sequence[DenseLayer],
    dimensions: Sequence[int | None],
    normalize: Sequence[bool],
) -> Finished:
    """Project, truncate, then normalise the pooled vectors (float32 [k, d]) of k requests at once.

    `dimensions` and `normalize` have one entry per request. Normalising comes last, so a truncated vector has
    norm 1; a zero vector stays zero. One row's NaN reaches no other. Raises PoolingConfigError for
    dimensions out of range, PoolingStateError for sizes that do not fit.
    """
    if not len(pooled) == len(dimensions) == len(normalize):
        raise PoolingStateError(
            f"{len(pooled)} vectors, {len(dimensions)} dimensions and {len(normalize)} normalize flags"
        )
    for layer in layers:
        pooled = layer(pooled)
    native = pooled.shape[1]
    for wanted in dimensions:
        check_dimensions(wanted, native, may_truncate=True)
    sizes = [native if wanted is None else wanted for wanted in dimensions]
    device = pooled.device
    beyond = torch.arange(native, device=device) >= torch.tensor(sizes, device=device)[:, None]
    vectors = pooled.masked_fill(beyond, 0.0)
    # Finite values whose norm overflows would be divided to zero: those count as non-finite too.
    norms = torch.linalg.vector_norm(vectors, dim=1)
    scaled = torch.tensor(list(normalize), dtype=torch.bool, device=device)
    bad = ~vectors.isfinite().all(dim=1) | (scaled & ~norms.isfinite())
    vectors = vectors / torch.where(scaled, norms.clamp_min(1e-12), 1.0)[:, None]
    return Finished(
        [row[:size] for row, size in zip(vectors.unbind(), sizes, strict=True)],
        bad.nonzero().flatten().tolist(),
    )


def _activation(spec: DenseSpec) -> nn.Module:
    refusal = f"{spec.path}: activation_function {spec.activation!r} is not allowed: name a torch.nn class"
    module_name, _, name = spec.activation.rpartition(".")
    if module_name != "torch.nn" and not module_name.startswith("torch.nn."):
        raise PoolingConfigError(refusal)
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except ImportError as error:
        raise PoolingConfigError(refusal) from error
    if (
        not isinstance(found, type)
        or not issubclass(found, nn.Module)
        or not found.__module__.startswith("torch.nn.")
    ):
        raise PoolingConfigError(refusal)
    try:
        activation: nn.Module = found().eval()
        fits = activation(torch.zeros(1, spec.out_features)).shape == (1, spec.out_features)
    except (TypeError, RuntimeError) as error:
        raise PoolingConfigError(f"{refusal} that works without arguments ({error})") from error
    if not fits:
        raise PoolingConfigError(f"{refusal} that keeps the shape")
    return activation


def _load_weights(spec: DenseSpec) -> dict[str, Tensor]:
    safetensors, pickled = spec.path / "model.safetensors", spec.path / "pytorch_model.bin"
    try:
        if safetensors.is_file():
            weights: dict[str, Tensor] = load_file(safetensors)
        elif pickled.is_file():
            weights = torch.load(pickled, map_location="cpu", weights_only=True)
        else:
            raise PoolingConfigError(f"{spec.path}: neither model.safetensors nor pytorch_model.bin is there")
    except (OSError, SafetensorError, pickle.UnpicklingError, RuntimeError) as error:
        raise PoolingConfigError(f"{spec.path}: cannot read the weights: {error}") from error
    if not isinstance(weights, dict) or not all(isinstance(weight, Tensor) for weight in weights.values()):
        raise PoolingConfigError(f"{spec.path}: the weights file holds no named tensors")
    return weights
