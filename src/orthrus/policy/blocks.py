"""A sorted list in blocks: the order of a queue, cheap to change anywhere and to read from the front."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import chain
from typing import Any

Entry = tuple[Any, int, str]
"""(order, sequence number, request id). Sequence numbers differ, so ids are never compared."""

_SPLIT = 512


class SortedBlocks:
    """Entries in ascending order, in blocks of at most 512.

    Appending at the end (first come first served) and removing the first entry touch one block; so does an
    insertion or a removal elsewhere (priorities, preempted requests, aborts), after a binary search.
    """

    __slots__ = ("_blocks", "_lasts", "_size")

    def __init__(self) -> None:
        self._blocks: list[list[Entry]] = []
        self._lasts: list[Entry] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(self._blocks)

    def first(self) -> Entry | None:
        """The smallest entry."""
        return self._blocks[0][0] if self._blocks else None

    def add(self, entry: Entry) -> None:
        """Insert `entry` at its place."""
        self._size += 1
        if not self._blocks:
            self._blocks.append([entry])
            self._lasts.append(entry)
            return
        # An entry later than all others goes to the last block.
        at = min(bisect_right(self._lasts, entry), len(self._blocks) - 1)
        block = self._blocks[at]
        if entry > block[-1]:
            block.append(entry)
        else:
            insort(block, entry)
        if len(block) > _SPLIT:
            half = len(block) // 2
            self._blocks.insert(at + 1, block[half:])
            del block[half:]
            self._lasts[at] = block[-1]
            self._lasts.insert(at + 1, self._blocks[at + 1][-1])
        else:
            self._lasts[at] = block[-1]

    def remove(self, entry: Entry) -> None:
        """Take `entry` out; ValueError if it is not there."""
        is_first = self.first() is entry
        at = 0 if is_first else bisect_left(self._lasts, entry)
        block = self._blocks[at] if at < len(self._blocks) else []
        index = 0 if is_first else bisect_left(block, entry)
        if index == len(block) or block[index] is not entry:
            raise ValueError(f"{entry!r} is not in this list")
        del block[index]
        self._size -= 1
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at]
            del self._lasts[at]
