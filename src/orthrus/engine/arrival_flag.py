"""One byte that the engine's process sets and its worker reads: a generation has arrived.

vLLM's input thread takes in requests while the worker computes (vllm/v1/engine/core.py,
`process_input_sockets`), but the worker reads its next order only when its step has ended.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

from orthrus.engine import compat

Address = tuple[int, int]
"""Process id and file descriptor of a flag."""


class ArrivalFlag:
    """A flag in anonymous shared memory, which goes with the processes that hold it (Linux)."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create("orthrus-arrival", os.MFD_CLOEXEC), "r+b")
        self._file.truncate(1)
        self._memory = mmap.mmap(self._file.fileno(), 1)

    @property
    def address(self) -> Address:
        """Where another process of the same user finds it: see `open_flag`."""
        return os.getpid(), self._file.fileno()

    def set(self) -> None:
        self._memory[0] = 1

    def clear(self) -> None:
        self._memory[0] = 0


def open_flag(address: Address) -> mmap.mmap:
    """The memory of another process's flag, to read: byte 0 is 1 once it is set. Raises OSError."""
    pid, descriptor = address
    with open(f"/proc/{pid}/fd/{descriptor}", "rb") as file:
        return mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)


def install() -> None:
    """Let engine cores tell their scheduler's `arrived` of each request at once. Safe to call twice."""
    core = compat.EngineCore
    stock = core.preprocess_add_request
    if hasattr(stock, "stock"):
        return

    def preprocess_add_request(self: Any, request: Any) -> Any:
        result = stock(self, request)
        arrived = getattr(self.scheduler, "arrived", None)  # a stock engine of the same process has none
        if arrived is not None:
            arrived(result[0])
        return result

    preprocess_add_request.stock = stock  # type: ignore[attr-defined]
    core.preprocess_add_request = preprocess_add_request
