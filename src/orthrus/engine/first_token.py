"""A short step for the chat that comes upon embeddings alone, so that it need not wait for another of theirs.

On a CPU a step full of prompt tokens may last a second. Such a chat has waited for the one that ran when it
came; while nothing decodes, a step of its own costs the embeddings no more than reading the weights once.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from orthrus.policy.registry import POLICIES
from orthrus.policy.work import Kind

if TYPE_CHECKING:
    from orthrus.engine.outlook import Outlook
    from orthrus.engine.scheduler import MixedScheduling
    from orthrus.policy.options import PolicyOptions
    from orthrus.policy.work import WorkItem


class FirstToken:
    """Cuts a step to the waiting prefills; with a TTFT target only, where steps are bounded (`StepSize`).

    `target_s` is that target, 0 where nothing is cut.
    """

    def __init__(self, scheduler: MixedScheduling, options: PolicyOptions, outlook: Outlook) -> None:
        self._waiting = scheduler.real_waiting
        self._policy = scheduler.mix_policy
        self._outlook = outlook
        is_bounded = bool(scheduler.settings.mixed_step_tokens)
        uses_target = "ttft_target_s" in POLICIES[scheduler.mix_policy.name].uses
        self.target_s = options.ttft_target_s if is_bounded and uses_target else 0.0
        self._last: str | None = None

    def tokens(self, step: int) -> int:
        """The token budget of the next step, at most `step`; ask only while no generation runs.

        It is what the waiting prefills need, where that is less, they are not in debt, and no half step is
        due to embeddings. That happens once for each that is first among them: if it cannot start, the next
        step is whole again.
        """
        first = self._waiting.first_generation() if self.target_s else None
        needed = self._waiting.kinds[Kind.PREFILL].remaining
        if first is None or first.request_id == self._last or needed >= step:
            return step
        self._last = first.request_id
        state = self._policy.state()
        # Else half of a short step would be the embeddings'.
        is_theirs = state["credit_embed"] < needed and not state["half_due"]
        return needed if is_theirs else step

    def wait_s(self, item: WorkItem) -> float:
        """For a StepView: how long a request has waited, and for ever where it was to have a step alone."""
        return inf if item.request_id == self._last else self._outlook.wait_s(item)
