"""An engine on CPU claims what is free, less a reserve, unless the user says how much."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from orthrus.engine import compat, cpu_memory
from orthrus.engine.compat import EngineArgs

GIB = 2**30
DEFAULT = EngineArgs.gpu_memory_utilization


class Arguments(EngineArgs):
    """Just the two settings, since a real EngineArgs looks its model up."""

    def __init__(self, utilization: float = DEFAULT, kv_cache_memory_bytes: int | None = None) -> None:
        self.gpu_memory_utilization = utilization
        self.kv_cache_memory_bytes = kv_cache_memory_bytes


def claimed(monkeypatch, *, free=22, total=24, cpu=True, space=None, **settings) -> float:
    monkeypatch.setattr(compat, "current_platform", SimpleNamespace(is_cpu=lambda: cpu))
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(available=free * GIB, total=total * GIB)
    )
    monkeypatch.delenv(cpu_memory.SPACE, raising=False)
    if space:
        monkeypatch.setenv(cpu_memory.SPACE, space)
    arguments = Arguments(**settings)
    cpu_memory.leave_room(arguments)
    return arguments.gpu_memory_utilization


@pytest.mark.parametrize(("free", "part"), [(22, round(19 / 24, 3)), (12, 0.375), (6, 0.125)])
def test_what_is_free_less_the_reserve(monkeypatch, free, part):
    assert claimed(monkeypatch, free=free) == part


@pytest.mark.parametrize(
    "case",
    [
        {"free": 5},
        {"free": 1000, "total": 1024},
        {"cpu": False},
        {"space": "4"},
        {"kv_cache_memory_bytes": GIB},
    ],
    ids=str,
)
def test_elsewhere_vllms_default_stays(monkeypatch, case):
    assert claimed(monkeypatch, **case) == DEFAULT


def test_what_the_user_asks_for_stays(monkeypatch):
    assert claimed(monkeypatch, utilization=0.5) == 0.5
