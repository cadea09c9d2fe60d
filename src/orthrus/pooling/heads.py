"""The names of the pooling heads."""

from __future__ import annotations

from enum import StrEnum

from orthrus.pooling.errors import PoolingConfigError


class Head(StrEnum):
    """How the hidden states of a prompt's n tokens become one vector (paper, section 3.3).

    `mean`, `weighted_mean` (weight i+1 at position i, as SGPT), `cls` (first token) and `last` (last
    token) keep O(d) state; `buffered` keeps all n hidden states and calls the operator's function.
    """

    MEAN = "mean"
    WEIGHTED_MEAN = "weighted_mean"
    CLS = "cls"
    LAST = "last"
    BUFFERED = "buffered"

    # Enum's own is a Python function, and heads are part of the key of every kept state.
    __hash__ = str.__hash__

    @classmethod
    def parse(cls, name: object) -> Head:
        """The head called `name`. Raises PoolingConfigError, listing the allowed names."""
        if isinstance(name, str) and name in cls.__members__.values():
            return cls(name)
        raise PoolingConfigError(f"unknown pooling head {name!r}: allowed are {', '.join(cls)}")
