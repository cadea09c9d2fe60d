"""Why generations wait although a step that vLLM planned by itself has tokens left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orthrus.engine.compat import PauseState
from orthrus.engine.waiting import adapter_of
from orthrus.policy.work import Kind, Refusal

if TYPE_CHECKING:
    from orthrus.engine.compat import SchedulerOutput
    from orthrus.engine.scheduler import MixedScheduling


def of_generations(scheduler: MixedScheduling, output: SchedulerOutput) -> dict[Kind, Refusal]:
    """Read off the state after the step, in the order in which vLLM's waiting loop asks."""
    first = scheduler.real_waiting.first_generation()
    full = output.total_num_scheduled_tokens >= scheduler.max_num_scheduled_tokens
    if first is None or full or scheduler._pause_state != PauseState.UNPAUSED:
        return {}
    if len(scheduler.running) >= scheduler.max_num_active_reqs:
        return {Kind.PREFILL: Refusal.SEQUENCE_SLOTS}
    adapter = adapter_of(first)
    if adapter and scheduler.lora_config:
        used = {adapter_of(request) for request in scheduler.running} - {0}
        if adapter not in used and len(used) >= scheduler.lora_config.max_loras:
            return {Kind.PREFILL: Refusal.ADAPTER_SLOTS}
    return {Kind.PREFILL: Refusal.KV_BLOCKS}
