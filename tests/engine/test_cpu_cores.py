"""On a small CPU machine every core computes; elsewhere, and where the user says so, vLLM's rule stays."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from vllm.utils.ompmultiprocessing import OMPProcessManager

from orthrus.engine import compat, cpu_cores

PLAIN = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "kv_transfer_config": None,
}


def reserved(monkeypatch, *, cores=2, cpu=True, **arguments) -> str | None:
    monkeypatch.setattr(compat, "current_platform", SimpleNamespace(is_cpu=lambda: cpu))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(cores)))
    cpu_cores.use_all(SimpleNamespace(**{**PLAIN, **arguments}))
    return os.environ.get(cpu_cores.SWITCH)


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.setenv(cpu_cores.SWITCH, "")  # monkeypatch restores what the code under test sets
    monkeypatch.delenv(cpu_cores.SWITCH)


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_no_core_is_kept_back_on_a_small_machine(monkeypatch, cores):
    assert reserved(monkeypatch, cores=cores) == "0"


@pytest.mark.parametrize(
    "case",
    [
        {"cores": 5},
        {"cpu": False},
        {"tensor_parallel_size": 2},
        {"data_parallel_size": 2},
        {"kv_transfer_config": {}},
    ],
    ids=str,
)
def test_elsewhere_vllm_decides(monkeypatch, case):
    assert reserved(monkeypatch, **case) is None


def test_the_users_number_stays(monkeypatch):
    monkeypatch.setenv(cpu_cores.SWITCH, "1")
    assert reserved(monkeypatch) == "1"


@pytest.mark.parametrize("kept", [0, 1])
def test_vllm_honours_the_switch(monkeypatch, kept):
    monkeypatch.setenv(cpu_cores.SWITCH, str(kept))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "auto")
    parallel = SimpleNamespace(local_world_size=1, data_parallel_rank_local=None, _api_process_count=1)
    manager = OMPProcessManager(SimpleNamespace(parallel_config=parallel, kv_transfer_config=None))
    assert len(manager.reserved_cpu_list) == (kept if len(os.sched_getaffinity(0)) > kept else 0)
