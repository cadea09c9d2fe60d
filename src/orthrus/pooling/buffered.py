"""Every hidden state kept: for the operator's own pooling function, and for token-level output."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from orthrus.pooling.errors import (
    PoolingCapacityError,
    PoolingConfigError,
    PoolingFunctionError,
    PoolingStateError,
)
from orthrus.pooling.segments import Segments

PoolingFunction = Callable[[Tensor], Tensor]

# Rows are handed out in pages, so that requests of any length share one buffer without fragmenting it.
PAGE_ROWS = 64


def load_function(path: str) -> PoolingFunction:
    """The function at `path`, written `module:function` or `module.function`.

    It maps a prompt's hidden states [n, d] to a vector [m], m the same for all prompts, and must be
    deterministic. Raises PoolingConfigError where the path is malformed, not found or not callable.
    """
    module_name, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not name.isidentifier():
        raise PoolingConfigError(
            f"pooling function {path!r} is not a dotted path: write 'module:function' or 'module.function'"
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise PoolingConfigError(
            f"pooling function {path!r}: cannot import {module_name!r} ({error})"
        ) from error
    function = getattr(module, name, None)
    if function is None:
        raise PoolingConfigError(f"pooling function {path!r}: module {module_name!r} has no {name!r}")
    if not callable(function):
        raise PoolingConfigError(f"pooling function {path!r} is a {type(function).__name__}, not callable")
    return function  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class BufferedHead:
    """What the operator configured: the function, its name, and how much may be buffered.

    Without a function (None) the buffer serves token-level output only. `max_tokens` bounds the tokens of all
    buffered requests together (rounded up to whole pages of 64); `dtype` is the buffer's: float32, or the
    model's own to halve the memory without loss.
    """

    function: PoolingFunction | None
    name: str
    max_tokens: int
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise PoolingConfigError(
                f"max_tokens of the buffered head must be at least 1, not {self.max_tokens}"
            )
        if not self.dtype.is_floating_point:
            raise PoolingConfigError(
                f"the buffered head's dtype must be a floating-point one, not {self.dtype}"
            )

    @classmethod
    def load(cls, path: str, max_tokens: int, dtype: torch.dtype = torch.float32) -> BufferedHead:
        """As the constructor, with the function loaded from its dotted path."""
        return cls(load_function(path), path, max_tokens, dtype)


class BufferedStates:
    """The buffer: [pages * 64, d] rows on the device, and a page table per slot on the CPU."""

    def __init__(self, head: BufferedHead, num_slots: int, hidden_size: int, device: torch.device) -> None:
        self._head = head
        total = pages(head.max_tokens)
        self._rows = torch.empty(total * PAGE_ROWS, hidden_size, dtype=head.dtype, device=device)
        self._table = torch.zeros(num_slots, total, dtype=torch.int64)
        self._free = list(range(total - 1, -1, -1))
        self._held: dict[int, list[int]] = {}
        self._width: int | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes of the buffer and its page table."""
        return self._rows.nbytes + self._table.nbytes

    def fits(self, prompt_len: int) -> bool:
        """Whether `reserve` would succeed now."""
        return pages(prompt_len) <= len(self._free)

    def reserve(self, slot: int, prompt_len: int) -> None:
        """Take the pages of a whole prompt, so that no later chunk can fail. Raises PoolingCapacityError."""
        if not self.fits(prompt_len):
            raise PoolingCapacityError(
                f"a prompt of {prompt_len} tokens does not fit the buffered pooling head: "
                f"{len(self._free) * PAGE_ROWS} of {len(self._rows)} buffered tokens are free "
                f"(limit {self._head.max_tokens})"
            )
        count = pages(prompt_len)
        taken = [self._free.pop() for _ in range(count)]
        self._held[slot] = taken
        self._table[slot, :count] = torch.tensor(taken)

    def release(self, slot: int) -> None:
        """Give the slot's pages back; nothing happens where it holds none."""
        self._free.extend(reversed(self._held.pop(slot, [])))

    def store(self, part: Segments) -> None:
        """Copy the segments' rows to their pages, all requests at once.

        Raises PoolingStateError where the buffer's dtype would lose precision.
        """
        if torch.promote_types(part.hidden.dtype, self._rows.dtype) != self._rows.dtype:
            raise PoolingStateError(
                f"hidden states are {part.hidden.dtype}: the {self._rows.dtype} buffer would lose precision"
            )
        positions = part.token_positions()
        page = self._table[part.per_token(part.slots), positions // PAGE_ROWS]
        target = (page * PAGE_ROWS + positions % PAGE_ROWS).to(self._rows.device)
        self._rows.index_copy_(0, target, part.rows().to(self._rows.dtype))

    def rows(self, slot: int, prompt_len: int) -> Tensor:
        """A copy of the slot's hidden states, [prompt_len, d] in the buffer's dtype."""
        positions = torch.arange(prompt_len)
        source = self._table[slot, positions // PAGE_ROWS] * PAGE_ROWS + positions % PAGE_ROWS
        return self._rows.index_select(0, source.to(self._rows.device))

    def finish(self, slot: int, prompt_len: int) -> Tensor:
        """The function's vector for the slot, float32 [m]. Raises PoolingFunctionError.

        The first vector says how long all are: an index, or a score of two, has no use for others.
        """
        name = self._head.name
        if self._head.function is None:
            raise PoolingFunctionError("no pooling function: the buffer is for token-level output", slot)
        try:
            vector = self._head.function(self.rows(slot, prompt_len))
        except (Exception, SystemExit) as error:  # an exit would end the engine and everybody's requests
            raise PoolingFunctionError(f"pooling function {name!r} failed: {error!r}", slot) from error
        if (
            not isinstance(vector, Tensor)
            or vector.ndim != 1
            or not vector.is_floating_point()
            or not len(vector)
        ):
            got = (
                f"{vector.dtype} {list(vector.shape)}"
                if isinstance(vector, Tensor)
                else type(vector).__name__
            )
            raise PoolingFunctionError(
                f"pooling function {name!r} must return a float vector [m], got {got}", slot
            )
        if self._width is None:
            self._width = len(vector)
        if len(vector) != self._width:
            raise PoolingFunctionError(
                f"pooling function {name!r} returned {len(vector)} numbers, but {self._width} at first", slot
            )
        return vector.float()


def pages(tokens: int) -> int:
    """How many pages `tokens` tokens take."""
    return -(-tokens // PAGE_ROWS)
