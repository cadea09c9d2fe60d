"""The embedding rows of one step, request by request, and their segmented sum."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

# A float32 running sum over thousands of rows loses digits; blocks of this many rows, summed again, keep a
# step's sum within float32 rounding, at no cost, and give a GPU more than one bag to work on.
BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True)
class Segments:
    """k runs of rows of one step's hidden states.

    `hidden` is [n, d] on any device; the rest are int64 CPU tensors of shape [k] (`heads` is int8): the
    request's slot, how many rows it has, the prompt position of its first row, the index of its
    first row in `hidden`, and its head's code.
    """

    hidden: Tensor
    slots: Tensor
    lengths: Tensor
    starts: Tensor
    offsets: Tensor
    heads: Tensor

    def select(self, mask: Tensor) -> Segments:
        """The segments where `mask` [k] is true; `hidden` stays as it is."""
        if bool(mask.all()):
            return self
        fields = {
            name: getattr(self, name)[mask] for name in ("slots", "lengths", "starts", "offsets", "heads")
        }
        return replace(self, **fields)

    def per_token(self, values: Tensor) -> Tensor:
        """`values` [k] repeated for each token: [sum(lengths)]."""
        return torch.repeat_interleave(values, self.lengths)

    def _counted_from(self, first: Tensor) -> Tensor:
        before = self.lengths.cumsum(0) - self.lengths
        shifted = self.per_token(first - before)
        return shifted + torch.arange(len(shifted))

    def token_positions(self) -> Tensor:
        """The prompt position of each token, int64 [sum(lengths)]."""
        return self._counted_from(self.starts)

    def rows(self) -> Tensor:
        """The hidden states of these segments only, [sum(lengths), d]; no copy where that is all of them."""
        if int(self.lengths.sum()) == len(self.hidden):
            return self.hidden
        return self.hidden.index_select(0, self._counted_from(self.offsets).to(self.hidden.device))


def segmented_sum(rows: Tensor, lengths: Tensor, weights: Tensor | None) -> Tensor:
    """The sum of each segment's rows, float32 [k, d], whatever the dtype of `rows` [n, d].

    `lengths` is int64 [k] on the CPU (each at least 1, adding up to n); `weights` is float32 [n] on the CPU,
    or None for ones. Bags rather than an indicator matmul: its 0 * NaN would carry one row's NaN into
    every other request, and its cost grows with k.
    """
    blocks = (lengths + (BLOCK_ROWS - 1)) // BLOCK_ROWS
    first_rows = lengths.cumsum(0) - lengths
    first_blocks = blocks.cumsum(0) - blocks
    block_count = int(blocks.sum())
    if block_count == len(lengths):
        return _bag_sum(rows.float(), first_rows, weights)
    block_in_segment = torch.arange(block_count) - torch.repeat_interleave(first_blocks, blocks)
    block_rows = torch.repeat_interleave(first_rows, blocks) + BLOCK_ROWS * block_in_segment
    return _bag_sum(_bag_sum(rows.float(), block_rows, weights), first_blocks, None)


def _bag_sum(rows: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
    device = rows.device
    return torch.nn.functional.embedding_bag(
        torch.arange(len(rows), device=device),
        rows,
        offsets.to(device, non_blocking=True),
        mode="sum",
        per_sample_weights=None if weights is None else weights.to(device, non_blocking=True),
    )
