"""What one embedding request asks of the pooler, read from vLLM's PoolingParams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orthrus.pooling.heads import Head

if TYPE_CHECKING:
    from vllm.pooling_params import PoolingParams

    from orthrus.engine.config import OrthrusConfig

POOLING_KEY = "pooling"


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """Head, normalisation and size of one embedding.

    `dimensions` None keeps the native size; `normalize` scales the vector to length 1.
    """

    head: Head
    normalize: bool
    dimensions: int | None

    @classmethod
    def of(cls, params: PoolingParams, config: OrthrusConfig) -> EmbeddingSpec:
        """Read a request. `extra_kwargs["pooling"]` overrides the engine's default head.

        Raises PoolingConfigError (a ValueError) for a head that does not exist or is not allowed here.
        """
        head = config.head((params.extra_kwargs or {}).get(POOLING_KEY))
        return cls(head, params.use_activation is not False, params.dimensions)
