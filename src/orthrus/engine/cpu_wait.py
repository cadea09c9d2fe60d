"""How the processes of an engine on CPU wait for each other: they nap instead of spinning.

vLLM's engine process and its worker spin on shared memory for a second after each message
(vllm/distributed/device_communicators/shm_broadcast.py, `SpinCondition`), and later sleep until they are
notified. Beside a GPU spinning saves microseconds; here the core that spins is one that could compute.
A notification alone would not do for short waits: vLLM's socket drops one that closely follows another.
"""

from __future__ import annotations

import time
from typing import Any

from orthrus.engine import compat

NAP_SHARE = 0.01
"""A nap is this part of the time waited so far, so that it delays a step by half a per cent on average."""
LONGEST_NAP = 1e-3
"""Seconds."""


def install() -> None:
    """Make this process nap where vLLM spins, on CPU; elsewhere nothing. Safe to call twice."""
    condition = compat.SpinCondition
    stock = condition.wait
    if not compat.current_platform.is_cpu() or hasattr(stock, "stock"):
        return

    def wait(self: Any, timeout_ms: int | None = None) -> None:
        waited = time.monotonic() - self.last_read
        if waited <= self.busy_loop_s:
            time.sleep(min(LONGEST_NAP, waited * NAP_SHARE))
        else:
            stock(self, timeout_ms)

    wait.stock = stock  # type: ignore[attr-defined]
    condition.wait = wait
