"""How the processes of an engine on CPU wait for each other: asleep.

vLLM's engine process and its worker spin on shared memory for a second after each message
(vllm/distributed/device_communicators/shm_broadcast.py, `SpinCondition`). Beside a GPU that saves
microseconds; here the core that spins is the one that computes the step.
"""

from __future__ import annotations

from typing import Any

from orthrus.engine import compat

SPIN_SECONDS = 0.0
"""How long after a message its reader spins. A notification wakes it within about 0.1 ms of a step's many."""


def install() -> None:
    """Make this process sleep until it is notified, on CPU; elsewhere nothing. Safe to call twice.

    Call it after the engine's processes have found each other: a notification sent before a reader has
    subscribed is lost, and spinning is what hides that.
    """
    condition = compat.SpinCondition
    stock = condition.wait
    if not compat.current_platform.is_cpu() or hasattr(stock, "stock"):
        return

    def wait(self: Any, timeout_ms: int | None = None) -> None:
        self.busy_loop_s = SPIN_SECONDS
        stock(self, timeout_ms)

    wait.stock = stock  # type: ignore[attr-defined]
    condition.wait = wait
