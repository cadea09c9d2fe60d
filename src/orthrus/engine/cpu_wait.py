"""How the processes of an engine on CPU wait for each other: asleep.

vLLM's engine process and its worker spin on shared memory for a second after each message
(vllm/distributed/device_communicators/shm_broadcast.py, `SpinCondition`). Beside a GPU that saves
microseconds; here the core that spins is one that could compute.
"""

from __future__ import annotations

import time
from typing import Any

from orthrus.engine import compat

SPIN_SECONDS = 1.0
"""For so long after a message vLLM spins, and we nap; then both sleep until they are notified."""
NAP_MS = 1
"""The longest nap. A notification ends it, but one that closely follows another may be dropped."""


def install() -> None:
    """Make this process sleep until it is notified, on CPU; elsewhere nothing. Safe to call twice."""
    condition = compat.SpinCondition
    stock = condition.wait
    if not compat.current_platform.is_cpu() or hasattr(stock, "stock"):
        return

    def wait(self: Any, timeout_ms: int | None = None) -> None:
        if time.monotonic() <= self.last_read + SPIN_SECONDS:
            timeout_ms = NAP_MS if timeout_ms is None else min(NAP_MS, timeout_ms)
        self.busy_loop_s = 0.0
        stock(self, timeout_ms)

    wait.stock = stock  # type: ignore[attr-defined]
    condition.wait = wait
