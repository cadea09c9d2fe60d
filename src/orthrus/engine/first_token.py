"""A short step for the chat that comes upon embeddings alone, so that it need not wait for another of theirs.

On a CPU a step full of prompt tokens may last a second. Such a chat has waited for the one that ran when it
came; while nothing decodes, a step of its own costs the embeddings no more than reading the weights once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orthrus.engine.outlook import waited_s
from orthrus.policy.registry import POLICIES
from orthrus.policy.work import Kind

if TYPE_CHECKING:
    from orthrus.engine.scheduler import MixedScheduling
    from orthrus.policy.options import PolicyOptions


class FirstToken:
    """Cuts a step to the waiting prefills when they are late; only where steps are bounded (`StepSize`)."""

    def __init__(self, scheduler: MixedScheduling, options: PolicyOptions) -> None:
        self._waiting = scheduler.real_waiting
        self._options = options
        is_bounded = bool(scheduler.settings.mixed_step_tokens)
        self._is_on = is_bounded and "ttft_target_s" in POLICIES[scheduler.mix_policy.name].uses
        self._last: str | None = None

    def tokens(self, step: int) -> int:
        """The token budget of the next step, at most `step`; ask only while no generation runs.

        If the first one that waits is late, it is what the waiting prefills need. That happens once for
        each first one: if it cannot start, the next step is whole again.
        """
        waiting = self._waiting
        first = waiting.first_generation() if self._is_on else None
        if first is None or first.request_id == self._last:
            return step
        if not self._options.is_late(waited_s(first)):
            return step
        self._last = first.request_id
        return min(step, waiting.kinds[Kind.PREFILL].remaining)
