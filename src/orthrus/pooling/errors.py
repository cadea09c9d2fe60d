"""What can go wrong between a hidden state and a vector; every error is a PoolingError."""

from __future__ import annotations


class PoolingError(Exception):
    """Base of every error of this package."""


class PoolingConfigError(PoolingError, ValueError):
    """A setting, a request field or a checkpoint file asks for something unknown or unsupported."""


class PoolingStateError(PoolingError):
    """A call does not fit the state of a slot: a missing prefix, an unknown slot, an early finish."""


class PoolingCapacityError(PoolingError):
    """The buffered head's memory does not hold the request; the message names the limit."""


class PoolingFunctionError(PoolingError):
    """The operator's pooling function failed or returned something that is not a vector.

    `slot` is the slot whose request it failed for; the other slots are unharmed.
    """

    def __init__(self, message: str, slot: int) -> None:
        super().__init__(message)
        self.slot = slot
