"""An engine on CPU claims a part of what is free, unless the user says how much."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from orthrus.engine import compat, cpu_memory
from orthrus.engine.compat import EngineArgs
from orthrus.engine.config import KEY
from orthrus.engine.worker_cpu import CPUWorker

GIB = 2**30
DEFAULT = EngineArgs.gpu_memory_utilization


class Arguments(EngineArgs):
    """Just the two settings, since a real EngineArgs looks its model up."""

    def __init__(self, utilization: float = DEFAULT, kv_cache_memory_bytes: int | None = None) -> None:
        self.gpu_memory_utilization = utilization
        self.kv_cache_memory_bytes = kv_cache_memory_bytes


def left(monkeypatch, *, free=22, total=24, cpu=True, space=None, **settings) -> tuple[float, bool]:
    """The part of the memory, and whether it is for Orthrus to choose."""
    monkeypatch.setattr(compat, "current_platform", SimpleNamespace(is_cpu=lambda: cpu))
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(available=free * GIB, total=total * GIB)
    )
    monkeypatch.delenv(cpu_memory.SPACE, raising=False)
    if space:
        monkeypatch.setenv(cpu_memory.SPACE, space)
    arguments = Arguments(**settings)
    ours = cpu_memory.leave_room(arguments)
    return arguments.gpu_memory_utilization, ours


@pytest.mark.parametrize(("free", "part"), [(22, round(19 / 24, 3)), (12, 0.375), (6, 0.125)])
def test_at_most_what_is_free_less_the_reserve(monkeypatch, free, part):
    assert left(monkeypatch, free=free) == (part, True)


def test_a_large_machine_keeps_vllms_part_as_the_limit(monkeypatch):
    assert left(monkeypatch, free=1000, total=1024) == (DEFAULT, True)


@pytest.mark.parametrize(
    "case",
    [
        {"free": 5},
        {"cpu": False},
        {"space": "4"},
        {"kv_cache_memory_bytes": GIB},
    ],
    ids=str,
)
def test_elsewhere_vllms_default_stays(monkeypatch, case):
    assert left(monkeypatch, **case) == (DEFAULT, False)


def test_what_the_user_asks_for_stays(monkeypatch):
    assert left(monkeypatch, utilization=0.5) == (0.5, False)


@pytest.mark.parametrize(("workers", "cache"), [(1, 8), (2, 4)])
def test_workers_share_half_of_what_is_free_beside_their_weights(monkeypatch, workers, cache):
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=3 * GIB))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * GIB))
    assert cpu_memory.claim(workers) == (3 + cache) * GIB


@pytest.mark.parametrize("settings", [{KEY: {"kv_from_free": True}}, {KEY: {}}], ids=["ours", "the user's"])
def test_a_worker_asks_vllm_for_no_more_than_its_claim(settings):
    worker = object.__new__(CPUWorker)
    parallel = SimpleNamespace(local_world_size=1, data_parallel_size_local=1)
    worker.vllm_config = SimpleNamespace(additional_config=settings, parallel_config=parallel)
    worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=None)
    worker._should_warm_up_model = lambda: False
    worker.requested_cpu_memory = 10**15
    if not settings[KEY]:
        with pytest.raises(ValueError, match="is less than requested memory for kv"):
            worker.determine_available_memory()
        return
    half = psutil.virtual_memory().available / 2
    assert 0.8 * half < worker.determine_available_memory() < 1.2 * half
