"""What an engine still holds: after the last request has finished, every count must be 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orthrus.engine import compat

if TYPE_CHECKING:
    from orthrus.engine.runner import MixedModelRunner
    from orthrus.engine.scheduler import MixedScheduling


def of_scheduler(scheduler: MixedScheduling) -> dict[str, int]:
    """Requests, entries and KV blocks in use (cached blocks that nobody uses are free)."""
    waiting = scheduler.real_waiting
    pool = scheduler.kv_cache_manager.block_pool
    return {
        "requests": len(scheduler.requests),
        "running": len(scheduler.running),
        "waiting": len(waiting) + len(scheduler.kv_holding_waiting),
        "deferred": len(scheduler.deferred_waiting),
        "orders": len(waiting.orders),
        "waiting_tokens": sum(queue.remaining for queue in waiting.kinds.values()),
        "embeddings": len(scheduler.embeddings),
        "kv_blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),  # one block is vLLM's null block
        "deferred_frees": len(scheduler.deferred_frees),
    }


def of_runner(runner: MixedModelRunner) -> dict[str, int]:
    """Requests, batch rows and pooling state of one worker."""
    batch = runner.input_batch
    return {
        "requests": len(runner.requests),
        "rows": len(batch.req_id_to_index),
        "embedding_rows": len(batch.pooling_params),
        "generators": len(batch.generators),
        "adapters": len(batch.lora_id_to_request_ids),
        "pooling_states": runner.pooler.open_requests,
        "pooling_slots": runner.pooler.open_slots,
    }


class WorkerIntegrity:
    """Mixin over vLLM's workers: `collective_rpc("integrity")` asks every one of them."""

    model_runner: Any

    def integrity(self) -> dict[str, int]:
        """`of_runner` for this worker."""
        return of_runner(self.model_runner)


def install() -> None:
    """Let a client ask the engine's process, in whatever way it reaches it: `orthrus_check_idle`.

    The answer is `{"scheduler": of_scheduler, "workers": [of_runner, ...]}`. Safe to call twice.
    """

    def orthrus_check_idle(self: Any) -> dict[str, Any]:
        return {
            "scheduler": self.scheduler.check_idle(),
            "workers": self.model_executor.collective_rpc("integrity"),
        }

    compat.EngineCore.orthrus_check_idle = orthrus_check_idle  # type: ignore[attr-defined]
