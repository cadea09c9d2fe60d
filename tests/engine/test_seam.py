"""The private parts of vLLM that Orthrus relies on: they exist, with the signatures that we override."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orthrus.engine import compat
from orthrus.engine.batch import MixedInputBatch
from orthrus.engine.runner import MixedModelRunner
from orthrus.engine.scheduler import AsyncMixedScheduler, MixedScheduler, MixedScheduling
from orthrus.engine.waiting import StepQueue, WaitingByKind
from orthrus.engine.worker_cpu import CPUWorker, MixedCPUModelRunner

DOCUMENT = Path(__file__).parents[2] / "docs" / "vllm-seam.md"

# Our class, vLLM's, and the methods that we override.
OVERRIDES: list[tuple[type, str, tuple[str, ...]]] = [
    (
        MixedScheduling,
        "Scheduler",
        (
            "add_request",
            "_free_request",
            "schedule",
            "_reserve_prefill_lookahead",
            "_get_local_prefix_cache_hit",
            "get_grammar_bitmask",
            "reset_prefix_cache",
            "shutdown",
        ),
    ),
    (AsyncMixedScheduler, "AsyncScheduler", ("_update_after_schedule",)),
    (
        MixedModelRunner,
        "GPUModelRunner",
        (
            "may_reinitialize_input_batch",
            "get_supported_tasks",
            "_on_request_state_removed",
            "_update_states",
            "_may_reorder_batch",
            "_prepare_inputs",
            "set_active_loras",
            "execute_model",
            "_pool",
            "sample_tokens",
            "_bookkeeping_sync",
        ),
    ),
    (
        MixedInputBatch,
        "InputBatch",
        ("_register_add_request", "remove_request", "refresh_metadata", "_make_sampling_metadata"),
    ),
    (CPUWorker, "CPUWorker", ("init_device",)),
]
QUEUE_METHODS = (
    "add_request",
    "pop_request",
    "peek_request",
    "prepend_request",
    "prepend_requests",
    "remove_request",
    "remove_requests",
)


@pytest.mark.parametrize("name", [name for name in compat.SEAM if name != "GPUWorker"])
def test_every_entry_resolves(name: str) -> None:
    module, attribute = compat.SEAM[name]
    # An engine of this process may have replaced a function by ours.
    assert getattr(compat, name) is inspect.unwrap(getattr(import_module(module), attribute))


@pytest.mark.parametrize(
    ("ours", "theirs", "method"),
    [(ours, theirs, method) for ours, theirs, methods in OVERRIDES for method in methods],
)
def test_overridden_methods_exist_with_the_arguments_that_we_take(
    ours: type, theirs: str, method: str
) -> None:
    upstream = inspect.signature(getattr(getattr(compat, theirs), method)).parameters
    mine = inspect.signature(ours.__dict__[method]).parameters
    named = [name for name, p in mine.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    assert list(upstream)[: len(named)] == named
    open_ended = any(p.kind == p.VAR_POSITIONAL for p in mine.values())
    assert open_ended or len(upstream) == len(named)


@pytest.mark.parametrize("queue", [WaitingByKind, StepQueue])
def test_queues_have_what_vllms_queue_has(queue: type) -> None:
    assert not inspect.isabstract(queue)
    assert set(QUEUE_METHODS) <= set(compat.RequestQueue.__dict__)
    abstract = {n for n, m in vars(compat.RequestQueue).items() if getattr(m, "__isabstractmethod__", False)}
    assert abstract == {*QUEUE_METHODS, "__bool__", "__len__", "__iter__"}


def test_classes_of_the_two_backends() -> None:
    assert issubclass(MixedScheduler, compat.Scheduler)
    assert not issubclass(MixedScheduler, compat.AsyncScheduler)
    assert issubclass(AsyncMixedScheduler, compat.AsyncScheduler)
    assert issubclass(MixedCPUModelRunner, compat.CPUModelRunner)


def test_vllm_asks_the_lookahead_hook_for_every_request_before_it_allocates() -> None:
    """A plan is carried out there: once for a running request, once for a waiting one."""
    source = inspect.getsource(compat.Scheduler.schedule)
    calls = [m.start() for m in re.finditer(r"self\._reserve_prefill_lookahead\(", source)]
    allocations = [m.start() for m in re.finditer(r"kv_cache_manager\.allocate_slots\(", source)]
    assert len(calls) == len(allocations) == 2
    assert calls[0] < allocations[0] < calls[1] < allocations[1]


def test_vllm_asks_for_the_grammar_bitmask_while_the_workers_run() -> None:
    """A step is settled and recorded then."""
    source = inspect.getsource(compat.EngineCore.step)
    steps = ("scheduler.schedule(", "execute_model(", "get_grammar_bitmask(", "future.result()")
    positions = [source.index(step) for step in steps]
    assert positions == sorted(positions)


def test_metadata_is_refreshed_after_the_rows_are_sorted() -> None:
    source = inspect.getsource(compat.GPUModelRunner._update_states)
    steps = ("input_batch.condense()", "self._may_reorder_batch(", "input_batch.refresh_metadata()")
    positions = [source.index(step) for step in steps]
    assert positions == sorted(positions)


@pytest.mark.parametrize(("value", "v2"), [("0", False), ("1", True)])
def test_vllm_honours_the_runner_switch(value: str, v2: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", value)
    chosen = compat.VllmConfig.use_v2_model_runner.fget(
        SimpleNamespace(attention_config=SimpleNamespace(hisparse_config=None), watermark_config=None)
    )
    assert chosen is v2


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    compat.check_version()
    monkeypatch.setattr(compat, "vllm_version", lambda: "0.33.1+cpu")
    with pytest.raises(compat.IncompatibleVllmError, match=r"supports vLLM 0\.32\.0, but 0\.33\.1\+cpu"):
        compat.check_version()


def test_a_missing_part_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat.SEAM, "Gone", ("vllm.v1.request", "Gone"))
    with pytest.raises(compat.IncompatibleVllmError, match=r"no vllm\.v1\.request\.Gone"):
        _ = compat.Gone
    with pytest.raises(AttributeError, match="no attribute 'NeverThere'"):
        _ = compat.NeverThere


def test_the_document_lists_every_part() -> None:
    text = DOCUMENT.read_text()
    parts: list[Any] = [f"`{attribute}`" for _, attribute in compat.SEAM.values()]
    parts += [f"`{method}`" for _, _, methods in OVERRIDES for method in methods]
    assert [part for part in parts if part not in text] == []
