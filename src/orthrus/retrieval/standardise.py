"""Per-dimension standardisation: undo the few dimensions that dominate a language model's states.

A generative checkpoint's hidden states share a large common direction, so that every cosine is near one
(anisotropy). Subtracting the mean of a collection and dividing by its deviation, dimension by dimension,
removes it without training. `scripts/measure_retrieval.py` measures the gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Standardiser:
    """Mean and standard deviation [d] of a collection, applied to it and to its queries."""

    mean: Vectors
    deviation: Vectors

    @classmethod
    def fit(cls, vectors: Vectors) -> Standardiser:
        """Statistics of `vectors` [n, d]. Raises ValueError for fewer than two vectors."""
        if vectors.ndim != 2 or len(vectors) < 2:
            raise ValueError(f"standardisation needs at least two vectors [n, d]; got shape {vectors.shape}")
        deviation = vectors.std(axis=0)
        # A dimension that never varies says nothing; dividing it by one leaves it at zero.
        return cls(vectors.mean(axis=0), np.where(deviation > 0, deviation, 1).astype(np.float32))

    def apply(self, vectors: Vectors) -> Vectors:
        """Standardised copies of `vectors` [..., d], each of length one (zero vectors stay zero)."""
        scaled = (vectors - self.mean) / self.deviation
        length = np.linalg.norm(scaled, axis=-1, keepdims=True)
        return np.asarray(scaled / np.where(length > 0, length, 1), dtype=np.float32)
