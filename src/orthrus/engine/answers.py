"""What leaves the engine for a finished embedding: vectors projected, truncated, scaled and checked."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from orthrus.engine.embedding import EmbeddingSpec
from orthrus.pooling.bank import PoolingBank
from orthrus.pooling.errors import PoolingConfigError, PoolingFunctionError
from orthrus.pooling.finishing import DenseLayer, finish_vectors

logger = logging.getLogger("vllm.orthrus")


def vectors_of(
    pooled: torch.Tensor, layers: Sequence[DenseLayer], specs: Sequence[EmbeddingSpec]
) -> list[torch.Tensor]:
    """The answers of k requests, float32 [dimensions] each, from `pooled` [k, d].

    A vector that is not finite becomes NaN throughout: the front end turns it into an error, while a norm
    that overflowed would look like a zero vector.
    """
    dimensions, normalize = [spec.dimensions for spec in specs], [spec.normalize for spec in specs]
    finished = finish_vectors(pooled, layers, dimensions, normalize)
    for k in finished.nonfinite:
        finished.vectors[k].fill_(torch.nan)
    return finished.vectors


def matrix_of(rows: torch.Tensor, layers: Sequence[DenseLayer], spec: EmbeddingSpec) -> torch.Tensor:
    """As `vectors_of` for the rows [m, d] of one request, which share its spec: float32 [m, dimensions]."""
    return torch.stack(vectors_of(rows, layers, [spec] * len(rows)))


def buffered_answer(bank: PoolingBank, slot: int, req_id: str, spec: EmbeddingSpec) -> torch.Tensor:
    """Token-level output [n, dimensions], or the operator's function's vector.

    The checkpoint's Dense layers belong to its own pooling and are left out. A function that fails, or
    gives fewer than `dimensions` numbers, gives NaN: vLLM's runner has no way to send one request's error.
    """
    if spec.per_token:
        return matrix_of(bank.hidden_states(slot), (), spec)
    try:
        vector = bank.finish(torch.tensor([slot]))
        return vectors_of(vector, (), [spec])[0]
    except (PoolingFunctionError, PoolingConfigError) as error:
        logger.error("Request %s: %s", req_id, error, exc_info=error.__cause__)
        return unanswerable()


def unanswerable() -> torch.Tensor:
    """What stands for a vector that could not be made."""
    return torch.full((1,), torch.nan)
