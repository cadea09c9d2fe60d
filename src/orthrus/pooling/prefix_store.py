"""Pooling state at KV block boundaries, kept so that a later prompt with the same prefix can start there.

A mean needs every hidden state of a prompt, so a prefix-cache hit alone would lose those of the prefix; with
the running sum at the block boundary beside the cached block nothing is lost. Which boundary is kept
in which row is decided by the scheduler (engine/prefix_sums.py); this module only moves numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orthrus.pooling import ledger
from orthrus.pooling.bank import PoolingBank, PrefixState
from orthrus.pooling.errors import PoolingConfigError
from orthrus.pooling.heads import Head
from orthrus.pooling.segments import Segments, segmented_sum


class PrefixStore:
    """`rows` states of float32 [hidden_size] in one buffer on `device`."""

    # Normal tensors even where the engine loads under inference mode, as in PoolingBank.
    @torch.inference_mode(False)
    def __init__(self, rows: int, hidden_size: int, device: torch.device | str = "cpu") -> None:
        if rows < 1:
            raise PoolingConfigError(f"a prefix store needs at least 1 row, not {rows}")
        self._states = torch.zeros(rows, hidden_size, dtype=torch.float32, device=device)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the buffer."""
        return self._states.nbytes

    def load(self, row: int, head: Head, tokens: int) -> PrefixState:
        """A copy of a kept state, as the state of `head` after `tokens` tokens."""
        return PrefixState(head, tokens, self._states[row].clone())

    @torch.no_grad()
    def save(self, rows: Tensor, states: Tensor) -> None:
        """Keep `states` float32 [m, hidden_size] in `rows` (int64 [m], CPU)."""
        self._states.index_copy_(0, rows.to(self._states.device), states)


@torch.no_grad()
def boundary_states(bank: PoolingBank, step: Segments, owners: Tensor, ends: Tensor) -> Tensor:
    """The state of streaming heads at prompt positions inside a step, float32 [m, hidden_size].

    Call before `bank.update` of the same step. `step` holds the k requests' rows; boundary j lies in
    request `owners[j]` after its token `ends[j]` (start < end <= start + length). Both are int64 [m], CPU,
    owners ascending, ends ascending within an owner. The last head keeps no state and must not be asked.
    """
    first = torch.ones(len(owners), dtype=torch.bool)
    first[1:] = owners[1:] != owners[:-1]
    begins = torch.where(first, step.starts[owners], ends.roll(1))
    pieces = Segments(
        hidden=step.hidden,
        slots=step.slots[owners],
        lengths=ends - begins,
        starts=begins,
        offsets=step.offsets[owners] + begins - step.starts[owners],
        heads=step.heads[owners],
    )
    weights = None
    if bool((pieces.heads == ledger.WEIGHTED).any()):
        weights = (pieces.token_positions() + 1).float()
        weights.masked_fill_(pieces.per_token(pieces.heads != ledger.WEIGHTED), 1.0)
    sums = segmented_sum(pieces.rows(), pieces.lengths, weights)
    before = bank.running(pieces.slots)
    states = before + _sum_within_owners(sums, first)
    return _keep_first_rows(states, before, step, pieces, owners)


def _sum_within_owners(sums: Tensor, first: Tensor) -> Tensor:
    # Sums of thousands of rows of both signs: float64 keeps the difference of two totals exact.
    totals = sums.double().cumsum(0)
    start = torch.arange(len(first))[first][first.cumsum(0) - 1].to(sums.device)
    return (totals - (totals[start] - sums.double()[start])).float()


def _keep_first_rows(
    states: Tensor, before: Tensor, step: Segments, pieces: Segments, owners: Tensor
) -> Tensor:
    cls = pieces.heads == ledger.CLS
    if not bool(cls.any()):
        return states
    fresh = cls & (step.starts[owners] == 0)
    offsets = step.offsets[owners].to(states.device)
    rows = step.hidden.index_select(0, offsets).float()
    states = torch.where(fresh.to(states.device)[:, None], rows, states)
    return torch.where((cls & ~fresh).to(states.device)[:, None], before, states)
