"""What one embedding request asks of the pooler, read from vLLM's PoolingParams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orthrus.pooling.buffered import pages
from orthrus.pooling.errors import PoolingConfigError
from orthrus.pooling.heads import Head
from orthrus.pooling.spans import Span, check_spans

if TYPE_CHECKING:
    from orthrus.engine.compat import PoolingParams
    from orthrus.engine.config import OrthrusConfig

POOLING_KEY = "pooling"
SPANS_KEY = "spans"
TOKEN_TASK = "token_embed"

STREAMING = frozenset({Head.MEAN, Head.WEIGHTED_MEAN, Head.CLS})


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """Head, normalisation and size of one embedding.

    `dimensions` None keeps the native size; `normalize` scales each vector to length 1. With `spans` (token
    positions) the answer is [spans, d], with `per_token` [tokens, d] and `head` is the buffered one.
    """

    head: Head
    normalize: bool
    dimensions: int | None
    spans: tuple[Span, ...] = ()
    per_token: bool = False

    @classmethod
    def of(cls, params: PoolingParams, config: OrthrusConfig) -> EmbeddingSpec:
        """Read a request. `extra_kwargs["pooling"]` overrides the engine's default head.

        Raises PoolingConfigError (a ValueError) for a head that does not exist or is not allowed here.
        """
        extra = params.extra_kwargs or {}
        per_token = params.task == TOKEN_TASK
        return cls(
            head=Head.BUFFERED if per_token else config.head(extra.get(POOLING_KEY)),
            normalize=params.use_activation is not False,
            dimensions=params.dimensions,
            spans=tuple((start, end) for start, end in extra.get(SPANS_KEY) or ()),
            per_token=per_token,
        )

    @property
    def keeps_states(self) -> bool:
        """Whether the state at a block boundary says all about the tokens before it."""
        return self.head in STREAMING and not self.spans

    @property
    def needs_every_token(self) -> bool:
        """Whether cached KV blocks can never stand in for a part of the prompt."""
        return self.head is Head.BUFFERED or bool(self.spans)


def settle_head(params: PoolingParams, config: OrthrusConfig, adapter: Head | None = None) -> None:
    """Write the head into `params`, in the front end, where an error can still be answered.

    Raises PoolingConfigError for a head that does not exist or is not allowed here.
    """
    if params.task == TOKEN_TASK:
        return
    extra: dict[str, Any] = dict(params.extra_kwargs or {})
    extra[POOLING_KEY] = config.head(extra.get(POOLING_KEY), adapter).value
    params.extra_kwargs = extra


def check_extent(params: PoolingParams, tokens: int, config: OrthrusConfig) -> None:
    """Whether this engine can pool a prompt of `tokens` tokens as `params` ask, once the head is settled.

    Raises PoolingConfigError for spans outside the prompt, and for more tokens than the buffer holds.
    """
    extra = params.extra_kwargs or {}
    head = Head.BUFFERED if params.task == TOKEN_TASK else Head(extra[POOLING_KEY])
    if extra.get(SPANS_KEY) is not None:
        if head is Head.BUFFERED:
            raise PoolingConfigError("spans are served by mean, weighted_mean, cls and last only")
        check_spans(extra[SPANS_KEY], tokens, config.max_spans)
    if head is Head.BUFFERED and pages(tokens) > pages(config.pooling_buffer_tokens):
        raise PoolingConfigError(
            f"the input has {tokens} tokens, but the pooling buffer holds {config.pooling_buffer_tokens} "
            f"(--pooling-buffer-tokens)"
        )
