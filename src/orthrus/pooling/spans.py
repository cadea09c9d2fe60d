"""Several vectors from one pass over a document, one for each of its spans ("late chunking").

Every token of a span has seen the whole document before it, which a span embedded alone has not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orthrus.pooling.errors import PoolingConfigError, PoolingStateError
from orthrus.pooling.heads import Head

Span = tuple[int, int]


def check_spans(spans: object, tokens: int, most: int) -> tuple[Span, ...]:
    """`spans` as pairs (start, end): token positions, the end exclusive, 0 <= start < end <= `tokens`.

    Spans may overlap and come in any order. Raises PoolingConfigError that names the span.
    """
    if not isinstance(spans, list | tuple) or not spans:
        raise PoolingConfigError(f"spans is {spans!r:.60}; allowed: a list of [start, end] pairs")
    if len(spans) > most:
        raise PoolingConfigError(f"{len(spans)} spans in one input; at most {most} are allowed (--max-spans)")
    checked = []
    for i, span in enumerate(spans):
        if not isinstance(span, list | tuple) or [type(edge) for edge in span] != [int, int]:
            raise PoolingConfigError(f"spans[{i}] is {span!r:.60}; allowed: [start, end], two whole numbers")
        start, end = span
        if not 0 <= start < end <= tokens:
            raise PoolingConfigError(
                f"spans[{i}] is [{start}, {end}]; allowed: 0 <= start < end <= {tokens}, the input's length"
            )
        checked.append((start, end))
    return tuple(checked)


class SpanSums:
    """The pooling state of one document with s spans: float64 [s, hidden_size], whatever its length.

    The head is one of the streaming ones and counts within each span: weighted_mean gives a span's first
    token weight 1, cls takes its first token, last its last one.
    """

    def __init__(
        self, spans: Sequence[Span], head: Head, hidden_size: int, device: torch.device | str = "cpu"
    ) -> None:
        if head is Head.BUFFERED:
            raise PoolingConfigError("spans cannot be pooled with the buffered head: it has no running state")
        self._head = head
        self._starts = torch.tensor([start for start, _ in spans])
        self._ends = torch.tensor([end for _, end in spans])
        self._state = torch.zeros(len(spans), hidden_size, dtype=torch.float64, device=device)
        self._seen = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of the state."""
        return self._state.nbytes

    @torch.no_grad()
    def update(self, hidden: Tensor, start: int) -> None:
        """Take in the document's next rows, [n, hidden_size] of any float dtype, from position `start` on.

        Raises PoolingStateError where `start` is not the number of tokens seen.
        """
        if start != self._seen:
            raise PoolingStateError(f"rows start at position {start}, but {self._seen} tokens were seen")
        self._seen += len(hidden)
        first = (self._starts - start).clamp(0, len(hidden))
        beyond = (self._ends - start).clamp(0, len(hidden))
        touched = (first < beyond).nonzero().flatten()
        if self._head is Head.CLS:
            touched = touched[self._starts[touched] >= start]
        if self._head is Head.LAST:
            touched = touched[self._ends[touched] <= start + len(hidden)]
        if not len(touched):
            return
        device = self._state.device
        first, beyond, at = first[touched].to(device), beyond[touched].to(device), touched.to(device)
        if self._head is Head.CLS:
            self._state.index_copy_(0, at, hidden.index_select(0, first).double())
        elif self._head is Head.LAST:
            self._state.index_copy_(0, at, hidden.index_select(0, beyond - 1).double())
        else:
            self._state.index_add_(0, at, self._sums(hidden, start, first, beyond, at))

    @torch.no_grad()
    def finish(self) -> Tensor:
        """The spans' vectors, float32 [s, hidden_size]; PoolingStateError before the last span's end."""
        if self._seen < int(self._ends.max()):
            raise PoolingStateError(
                f"cannot finish after {self._seen} tokens: a span ends at {int(self._ends.max())}"
            )
        lengths = (self._ends - self._starts).double().to(self._state.device)
        divisors = {Head.MEAN: lengths, Head.WEIGHTED_MEAN: lengths * (lengths + 1) / 2}
        divisor = divisors.get(self._head)
        return (self._state if divisor is None else self._state / divisor[:, None]).float()

    def _sums(self, hidden: Tensor, start: int, first: Tensor, beyond: Tensor, at: Tensor) -> Tensor:
        # Differences of running totals: the cost does not grow with overlaps; float64 keeps them exact.
        rows = hidden.double()
        plain = _differences(rows, first, beyond)
        if self._head is Head.MEAN:
            return plain
        positions = torch.arange(len(rows), dtype=torch.float64, device=rows.device)
        by_position = _differences(rows * positions[:, None], first, beyond)
        # A token at position p of the rows has the weight start + p - (the span's start) + 1.
        shift = (start - self._starts.to(rows.device)[at] + 1).double()
        return by_position + shift[:, None] * plain


def _differences(rows: Tensor, first: Tensor, beyond: Tensor) -> Tensor:
    totals = torch.nn.functional.pad(rows.cumsum(0), (0, 0, 1, 0))
    return totals[beyond] - totals[first]
