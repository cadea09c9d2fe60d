"""What each slot holds and how far it is: counters on the CPU, checked before any state changes."""

from __future__ import annotations

import torch
from torch import Tensor

from orthrus.pooling.errors import PoolingStateError
from orthrus.pooling.heads import Head

# Codes of the heads in the per-slot tensor. The summed heads come first: one comparison finds them.
CLOSED, MEAN, WEIGHTED, CLS, LAST, BUFFERED = -1, 0, 1, 2, 3, 4
_CODES = {
    Head.MEAN: MEAN,
    Head.WEIGHTED_MEAN: WEIGHTED,
    Head.CLS: CLS,
    Head.LAST: LAST,
    Head.BUFFERED: BUFFERED,
}
_HEADS = {code: head for head, code in _CODES.items()}


class SlotLedger:
    """Head, tokens seen, prompt length and divisor of each slot. Every check raises PoolingStateError."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.code = torch.full((num_slots,), CLOSED, dtype=torch.int8)
        self.seen = torch.zeros(num_slots, dtype=torch.int64)
        self.prompt_len = torch.zeros(num_slots, dtype=torch.int64)
        self.divisor = torch.ones(num_slots)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the counters."""
        return self.code.nbytes + self.seen.nbytes + self.prompt_len.nbytes + self.divisor.nbytes

    @property
    def open_slots(self) -> int:
        """How many slots are open."""
        return int((self.code != CLOSED).sum())

    def head(self, slot: int) -> Head:
        """The head of an open slot."""
        self.check_open(slot)
        return _HEADS[int(self.code[slot])]

    def open(self, slot: int, head: Head, prompt_len: int, seen: int) -> None:
        """Enter a request that has `seen` tokens behind it."""
        self.code[slot] = _CODES[head]
        self.seen[slot] = seen
        self.prompt_len[slot] = prompt_len
        # The weights of weighted_mean, 1 to n, add up to n (n + 1) / 2.
        divisors = {Head.MEAN: prompt_len, Head.WEIGHTED_MEAN: prompt_len * (prompt_len + 1) / 2}
        self.divisor[slot] = divisors.get(head, 1)

    def close(self, slot: int) -> None:
        """Strike the slot out."""
        self.code[slot] = CLOSED

    def check_range(self, slot: int) -> None:
        """The slot exists."""
        if not 0 <= slot < self.num_slots:
            raise PoolingStateError(f"slot {slot} does not exist: slots are 0 to {self.num_slots - 1}")

    def check_open(self, slot: int) -> None:
        """The slot exists and is open."""
        self.check_range(slot)
        if self.code[slot] == CLOSED:
            raise PoolingStateError(f"slot {slot} is not open")

    def check_slots(self, slots: Tensor) -> None:
        """`slots` is int64 [k] on the CPU, all open and distinct."""
        _check_vector("slots", slots)
        numbers = slots.tolist()
        if not numbers:
            return
        self.check_range(min(numbers))
        self.check_range(max(numbers))
        if len(set(numbers)) != len(numbers):
            raise PoolingStateError(f"a slot is named twice in {numbers}")
        closed = self.code[slots] == CLOSED
        if bool(closed.any()):
            raise PoolingStateError(f"slots {slots[closed].tolist()} are not open")

    def check_step(self, rows: int, slots: Tensor, lengths: Tensor, starts: Tensor) -> None:
        """The k requests' rows add up to `rows`, continue where the slots stand and fit their prompts."""
        self.check_slots(slots)
        for name, values in (("lengths", lengths), ("starts", starts)):
            _check_vector(name, values)
            if len(values) != len(slots):
                raise PoolingStateError(f"{len(slots)} slots, but {len(values)} {name}")
        if bool((lengths < 1).any()):
            raise PoolingStateError(f"each request of a step has at least 1 row, not {lengths.tolist()}")
        if int(lengths.sum()) != rows:
            raise PoolingStateError(f"lengths add up to {int(lengths.sum())} rows, hidden has {rows}")
        seen = self.seen[slots]
        if (i := _first(starts != seen)) is not None:
            raise PoolingStateError(
                f"slot {int(slots[i])}: rows start at position {int(starts[i])}, "
                f"but {int(seen[i])} tokens were seen"
            )
        ends, wanted = starts + lengths, self.prompt_len[slots]
        if (i := _first(ends > wanted)) is not None:
            raise PoolingStateError(
                f"slot {int(slots[i])}: {int(ends[i])} tokens, but the prompt has {int(wanted[i])}"
            )

    def check_complete(self, slots: Tensor) -> None:
        """Every slot has seen its whole prompt."""
        self.check_slots(slots)
        seen, wanted = self.seen[slots], self.prompt_len[slots]
        if (i := _first(seen != wanted)) is not None:
            raise PoolingStateError(
                f"slot {int(slots[i])}: cannot finish after {int(seen[i])} of {int(wanted[i])} tokens"
            )


def _check_vector(name: str, values: Tensor) -> None:
    if values.ndim != 1 or values.dtype != torch.int64 or values.device.type != "cpu":
        raise PoolingStateError(
            f"{name} must be int64 [k] on the CPU, not {values.dtype} {list(values.shape)} on {values.device}"
        )


def _first(wrong: Tensor) -> int | None:
    return int(wrong.nonzero()[0]) if bool(wrong.any()) else None
