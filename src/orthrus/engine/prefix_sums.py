"""The scheduler's side of prefix reuse for embeddings: which pooling states are kept, under which key.

A state is keyed by head and by the block hash at its end, the very hash of vLLM's prefix cache, so adapter,
salt and every earlier token are part of the key. A state is offered only to a request whose KV blocks
are cached up to the same boundary; without one the prefix is computed again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from orthrus.pooling.heads import Head


@dataclass(slots=True)
class SumOrders:
    """What the worker does with kept states in one step, sent along with vLLM's SchedulerOutput.

    `loads`: row by request id, for requests that start behind a cached prefix. `saves`: by request id,
    (prompt position, row) for each boundary that this step reaches.
    """

    loads: dict[str, int] = field(default_factory=dict)
    saves: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


class PrefixSums:
    """An index of at most `rows` kept states, least recently used out first.

    A state that a step saves is offered from the next step on, because it exists only then.
    `block_size` is that of the block hashes, in tokens.
    """

    def __init__(self, rows: int, block_size: int) -> None:
        self.block_size = block_size
        self._rows: OrderedDict[Hashable, int] = OrderedDict()
        self._free = list(range(rows - 1, -1, -1))
        self._step = 1
        self._saved_in = [0] * rows  # the step that wrote each row last
        self._saved: list[Hashable] = []
        self._last_saved: list[Hashable] = []

    def __len__(self) -> int:
        return len(self._rows)

    def end_step(self) -> None:
        """Offer from now on what this step saves."""
        self._step += 1
        self._last_saved, self._saved = self._saved, []

    def take_back(self) -> None:
        """The step that `end_step` ended did not run after all: what it was to save does not exist."""
        self._free.extend(self._rows.pop(key) for key in self._last_saved)
        self._last_saved = []

    def longest(self, head: Head, hashes: Sequence[Hashable], cached_tokens: int) -> tuple[int, int] | None:
        """The longest prefix of at most `cached_tokens` that has a kept state: (tokens, row), or None."""
        for blocks in range(min(cached_tokens // self.block_size, len(hashes)), 0, -1):
            key = (head, hashes[blocks - 1])
            row = self._rows.get(key)
            if row is not None and self._saved_in[row] != self._step:
                self._rows.move_to_end(key)
                return blocks * self.block_size, row
        return None

    def save(self, head: Head, hashes: Sequence[Hashable], start: int, end: int) -> list[tuple[int, int]]:
        """Reserve rows for the boundaries in (start, end] that have none yet: (prompt position, row) each."""
        saved: list[tuple[int, int]] = []
        size, rows, free, saved_in, step = self.block_size, self._rows, self._free, self._saved_in, self._step
        position = start - start % size
        for block_hash in hashes[start // size : end // size]:
            position += size
            key = (head, block_hash)
            if key in rows:
                rows.move_to_end(key)
                continue
            row = free.pop() if free else self._least_recent()
            if row is None:
                break
            rows[key] = row
            saved_in[row] = step
            self._saved.append(key)
            saved.append((position, row))
        return saved

    def clear(self) -> None:
        """Forget everything (vLLM's prefix cache was reset: new weights, say)."""
        self._free.extend(self._rows.values())
        self._rows.clear()
        self._saved = []
        self._last_saved = []

    def _least_recent(self) -> int | None:
        oldest = next(iter(self._rows), None)
        # A row of this very step is not given away again: the worker would write it twice.
        if oldest is None or self._saved_in[self._rows[oldest]] == self._step:
            return None
        return self._rows.pop(oldest)
