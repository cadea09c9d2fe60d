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

        Raises ValueError for a head that does not exist or that the engine does not allow.
        """
        name = (params.extra_kwargs or {}).get(POOLING_KEY)
        if name is not None and name not in config.allowed_pooling:
            raise ValueError(
                f"pooling {name!r} is not allowed here; allowed: {', '.join(config.allowed_pooling)}"
            )
        head = Head.parse(name or config.pooling or Head.MEAN)
        return cls(head, params.use_activation is not False, params.dimensions)

    @property
    def may_read_prefix_cache(self) -> bool:
        """Whether cached KV blocks may stand in for a prefix: only where no hidden state of it is needed."""
        return self.head is Head.LAST
