"""`GET /orthrus/state`: an engine's settings, and what its schedulers and workers hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import APIRouter, Request

from orthrus.engine.config import OrthrusConfig

state_router = APIRouter(prefix="/orthrus")


@state_router.get("/state")
async def state(raw_request: Request) -> dict[str, Any]:
    """The settings in force, and what is held; all counts are 0 when the engine is idle.

    With data parallelism `scheduler` is the sum over the replicas, `workers` has all workers, replica by
    replica, and `replicas` has both for each of them.
    """
    engine = raw_request.app.state.orthrus_engine
    held = await engine.engine_core.call_utility_all_async("orthrus_check_idle")
    return {"config": effective(engine.vllm_config), **together(held)}


def effective(vllm_config: Any) -> dict[str, Any]:
    """The settings, with the numbers that apply where the operator left them open."""
    config = OrthrusConfig.of(vllm_config)
    settings = config.model_dump(mode="json")
    settings["pooling"] = config.head().value
    if config.generation_slots is not None:
        settings["embed_slots"] = vllm_config.scheduler_config.max_num_seqs - config.generation_slots
    return settings


def together(replicas: list[dict[str, Any]]) -> dict[str, Any]:
    """What all replicas hold together, and each of them: one entry of `replicas` is one engine's answer."""
    scheduler: Counter[str] = Counter()
    for replica in replicas:
        scheduler.update(replica["scheduler"])
    return {
        "scheduler": dict(scheduler),
        "workers": [worker for replica in replicas for worker in replica["workers"]],
        "replicas": replicas,
    }
