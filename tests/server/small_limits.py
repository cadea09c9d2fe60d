"""The limits that the tests of the checks hold requests against."""

from __future__ import annotations

from orthrus.server.checks import EmbeddingLimits

LIMITS = EmbeddingLimits(
    max_model_len=16,
    vocab_size=100,
    native_size=8,
    max_inputs=4,
    allowed_pooling=("mean", "last"),
    smaller_dimensions=True,
)
