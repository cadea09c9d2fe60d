"""The pooling state of every request in flight, updated for all embedding rows of a step at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from orthrus.pooling import ledger
from orthrus.pooling.buffered import BufferedHead, BufferedStates
from orthrus.pooling.errors import PoolingConfigError, PoolingStateError
from orthrus.pooling.heads import Head
from orthrus.pooling.segments import Segments, segmented_sum


@dataclass(frozen=True, slots=True)
class PrefixState:
    """The state of a streaming head after `tokens` tokens of a prompt.

    `total` is float32 [d]: the sum (mean), the sum weighted by position + 1 (weighted_mean), the first
    row (cls) or the last row so far (last).
    """

    head: Head
    tokens: int
    total: Tensor


class PoolingBank:
    """State of `num_slots` requests, O(d) each (paper, section 3.3: incremental pooler).

    One float32 buffer [num_slots, hidden_size] and its rounding carry (same shape) live on `device`;
    the counters live on the CPU, so that validation never waits for the device. `buffered` makes
    Head.BUFFERED available. Raises PoolingConfigError for sizes below 1.
    """

    # Normal tensors even where the engine loads under inference mode: they change in place outside it too.
    @torch.inference_mode(False)
    def __init__(
        self,
        num_slots: int,
        hidden_size: int,
        device: torch.device | str = "cpu",
        buffered: BufferedHead | None = None,
    ) -> None:
        if num_slots < 1 or hidden_size < 1:
            raise PoolingConfigError(
                f"num_slots and hidden_size must be at least 1, not {num_slots} and {hidden_size}"
            )
        self.num_slots = num_slots
        self.hidden_size = hidden_size
        self._sum = torch.zeros(num_slots, hidden_size, dtype=torch.float32, device=device)
        self._carry = torch.zeros_like(self._sum)
        self.device = self._sum.device
        self._ledger = ledger.SlotLedger(num_slots)
        self._buffered = BufferedStates(buffered, num_slots, hidden_size, self.device) if buffered else None

    @property
    def open_slots(self) -> int:
        """How many slots are open: 0 when the engine is idle, or state was left behind."""
        return self._ledger.open_slots

    @property
    def memory_bytes(self) -> int:
        """Bytes held on the device and the CPU, the buffered head's included; fixed at start-up."""
        buffered = self._buffered.memory_bytes if self._buffered else 0
        return self._sum.nbytes + self._carry.nbytes + self._ledger.memory_bytes + buffered

    def fits(self, head: Head, prompt_len: int) -> bool:
        """Whether the memory for such a request is free now; only the buffered head can be full."""
        return head is not Head.BUFFERED or (self._buffered is not None and self._buffered.fits(prompt_len))

    @torch.no_grad()
    def open(self, slot: int, head: Head, prompt_len: int, prefix: PrefixState | None = None) -> None:
        """Start a prompt of `prompt_len` tokens in `slot`, whatever the slot held before.

        `prefix` installs the state of tokens that will not be computed again. Raises PoolingStateError for a
        slot out of range or a prefix that does not fit, PoolingConfigError for a head that is not
        configured, PoolingCapacityError where the buffered head has no room (the slot is closed then).
        """
        self._ledger.check_range(slot)
        if prompt_len < 1:
            raise PoolingStateError(f"slot {slot}: a prompt has at least 1 token, not {prompt_len}")
        if prefix is not None:
            self._check_prefix(prefix, head, prompt_len)
        if head is Head.BUFFERED and self._buffered is None:
            raise PoolingConfigError(
                "the buffered pooling head is not configured: name its function at start-up"
            )
        self._clear(slot)
        if head is Head.BUFFERED and self._buffered is not None:
            self._buffered.reserve(slot, prompt_len)
        self._carry[slot].zero_()
        if prefix is None:
            self._sum[slot].zero_()
        else:
            self._sum[slot].copy_(prefix.total)
        self._ledger.open(slot, head, prompt_len, seen=0 if prefix is None else prefix.tokens)

    def close(self, slot: int) -> None:
        """Free the slot. Raises PoolingStateError where it is not open."""
        self._ledger.check_open(slot)
        self._clear(slot)

    @torch.no_grad()
    def update(self, hidden: Tensor, slots: Tensor, lengths: Tensor, starts: Tensor) -> None:
        """Take in one step's embedding rows.

        `hidden` is [n, hidden_size], any float dtype, the rows of the k requests contiguous and in order;
        `slots`, `lengths` (rows per request) and `starts` (prompt position of its first row) are int64 [k]
        on the CPU. All is checked before anything changes. Raises PoolingStateError: ragged
        sizes, a slot unknown or named twice, a start that is not the number of tokens seen, too many tokens.
        """
        self._check_hidden(hidden)
        self._ledger.check_step(len(hidden), slots, lengths, starts)
        if not len(slots):
            return
        step = self.segments(hidden, slots, lengths, starts)
        heads = step.heads
        summed, buffered = heads <= ledger.WEIGHTED, heads == ledger.BUFFERED
        if self._buffered is not None and bool(buffered.any()):
            self._buffered.store(step.select(buffered))
        if bool(summed.any()):
            self._add(step.select(summed))
        if not bool((summed | buffered).all()):
            self._keep(step.select(~(summed | buffered)))
        self._ledger.seen[slots] += lengths

    @torch.no_grad()
    def finish(self, slots: Tensor) -> Tensor:
        """The pooled vectors of `slots` (int64 [k], CPU), float32 [k, hidden_size]; the slots stay open.

        With the buffered head the width is its function's. Raises PoolingStateError for a slot that has not
        seen its whole prompt, or where the widths differ (use `finish_rows`); PoolingFunctionError.
        """
        self._ledger.check_complete(slots)
        if not bool((self._ledger.code[slots] == ledger.BUFFERED).any()):
            return self._streamed(slots)
        rows = self.finish_rows(slots)
        widths = sorted({len(row) for row in rows})
        if len(widths) > 1:
            raise PoolingStateError(f"vectors of widths {widths} do not stack: use finish_rows")
        return torch.stack(rows)

    @torch.no_grad()
    def finish_rows(self, slots: Tensor) -> list[Tensor]:
        """As `finish`, one float32 vector each, whose widths may differ."""
        self._ledger.check_complete(slots)
        rows = list(self._streamed(slots).unbind())
        if self._buffered is not None:
            for i in (self._ledger.code[slots] == ledger.BUFFERED).nonzero().flatten().tolist():
                rows[i] = self._buffered.finish(int(slots[i]), int(self._ledger.prompt_len[slots[i]]))
        return rows

    @torch.no_grad()
    def hidden_states(self, slot: int) -> Tensor:
        """Every hidden state of a buffered request, float32 [prompt_len, hidden_size].

        Raises PoolingStateError for another head, or before the whole prompt was seen.
        """
        self._ledger.check_complete(torch.tensor([slot]))
        if self._buffered is None or self._ledger.head(slot) is not Head.BUFFERED:
            raise PoolingStateError(f"slot {slot}: only the buffered head keeps hidden states")
        return self._buffered.rows(slot, int(self._ledger.prompt_len[slot])).float()

    @torch.no_grad()
    def snapshot(self, slot: int) -> PrefixState:
        """A copy of the slot's state so far, for `open(prefix=...)`; PoolingStateError if buffered."""
        head = self._ledger.head(slot)
        if head is Head.BUFFERED:
            raise PoolingStateError(f"slot {slot}: the buffered head has no O(d) state to copy")
        return PrefixState(head, int(self._ledger.seen[slot]), self.running(torch.tensor([slot]))[0])

    def segments(self, hidden: Tensor, slots: Tensor, lengths: Tensor, starts: Tensor) -> Segments:
        """The arguments of `update` as Segments, with the open slots' heads."""
        offsets = lengths.cumsum(0) - lengths
        return Segments(hidden, slots, lengths, starts, offsets, self._ledger.code[slots])

    def running(self, slots: Tensor) -> Tensor:
        """The undivided state of streaming heads in `slots` (int64 [k], CPU), float32 [k, hidden_size]."""
        index = slots.to(self.device)
        return self._sum[index] + self._carry[index]

    def _add(self, part: Segments) -> None:
        weights = None
        if bool((part.heads == ledger.WEIGHTED).any()):
            weights = (part.token_positions() + 1).float()
            weights.masked_fill_(part.per_token(part.heads == ledger.MEAN), 1.0)
        added = segmented_sum(part.rows(), part.lengths, weights)
        slots = part.slots.to(self.device)
        # Two-sum: what the addition rounds away goes to the carry, so that chunking does not move the result.
        before = self._sum[slots]
        total = before + added
        rest = total - before
        self._carry.index_add_(0, slots, (before - (total - rest)) + (added - rest))
        self._sum.index_copy_(0, slots, total)

    def _keep(self, part: Segments) -> None:
        part = part.select((part.heads == ledger.LAST) | (part.starts == 0))
        if not len(part.slots):
            return
        row = part.offsets + torch.where(part.heads == ledger.LAST, part.lengths - 1, 0)
        kept = part.hidden.index_select(0, row.to(self.device))
        self._sum.index_copy_(0, part.slots.to(self.device), kept.float())

    def _streamed(self, slots: Tensor) -> Tensor:
        return self.running(slots) / self._ledger.divisor[slots].to(self.device)[:, None]

    def _clear(self, slot: int) -> None:
        self._ledger.close(slot)
        if self._buffered is not None:
            self._buffered.release(slot)

    def _check_prefix(self, prefix: PrefixState, head: Head, prompt_len: int) -> None:
        if head is Head.BUFFERED:
            raise PoolingStateError(
                "the buffered head needs every hidden state: it cannot start from a prefix"
            )
        if prefix.head is not head:
            raise PoolingStateError(f"the prefix was pooled with {prefix.head}, the request asks for {head}")
        if not 0 <= prefix.tokens <= prompt_len:
            raise PoolingStateError(
                f"a prefix of {prefix.tokens} tokens does not fit a prompt of {prompt_len}"
            )
        if prefix.total.shape != (self.hidden_size,) or prefix.total.dtype != torch.float32:
            raise PoolingStateError(
                f"the prefix state must be float32 [{self.hidden_size}], "
                f"not {prefix.total.dtype} {list(prefix.total.shape)}"
            )

    def _check_hidden(self, hidden: Tensor) -> None:
        if hidden.ndim != 2 or hidden.shape[1] != self.hidden_size or not hidden.is_floating_point():
            raise PoolingStateError(
                f"hidden must be floating point [n, {self.hidden_size}], "
                f"not {hidden.dtype} {list(hidden.shape)}"
            )
        if hidden.device != self.device:
            raise PoolingStateError(f"hidden is on {hidden.device}, the pooling state on {self.device}")
