"""Hidden states of chunks become one vector: torch only, one bank of per-request state for every head."""

from orthrus.pooling.bank import PoolingBank, PrefixState
from orthrus.pooling.buffered import BufferedHead
from orthrus.pooling.errors import (
    PoolingCapacityError,
    PoolingConfigError,
    PoolingError,
    PoolingFunctionError,
    PoolingStateError,
)
from orthrus.pooling.heads import Head
from orthrus.pooling.spans import SpanSums

__all__ = [
    "BufferedHead",
    "Head",
    "PoolingBank",
    "PoolingCapacityError",
    "PoolingConfigError",
    "PoolingError",
    "PoolingFunctionError",
    "PoolingStateError",
    "PrefixState",
    "SpanSums",
]
