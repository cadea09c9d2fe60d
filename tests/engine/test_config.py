"""How Orthrus' settings travel inside vLLM's configuration."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import EngineArgs

from orthrus.engine.config import OrthrusConfig


def configured(model: Path, *, other: str = "", **settings: Any) -> Any:
    additional = {"orthrus": settings} | ({"other": other} if other else {})
    return EngineArgs(
        str(model), dtype="float32", max_model_len=256, additional_config=additional
    ).create_engine_config()


def test_a_compiled_model_serves_whatever_the_settings_that_do_not_change_it(tiny_model: Path):
    plain = configured(tiny_model).compute_hash()
    for settings in (
        {"trace_steps": "steps.jsonl"},
        {"policy": "fcfs"},
        {"pooling": "last", "itl_target_s": 0.3, "mixed_step_tokens": 64, "prefix_sums_mib": 0},
    ):
        assert configured(tiny_model, **settings).compute_hash() == plain, settings
    assert configured(tiny_model, batch_invariant=True).compute_hash() != plain
    assert configured(tiny_model, other="one").compute_hash() != plain
    one, two = (configured(tiny_model, other=other).compute_hash() for other in ("one", "two"))
    assert one != two


def test_the_settings_reach_another_process(tiny_model: Path):
    config = configured(tiny_model, other="one", policy="fcfs")
    there = pickle.loads(pickle.dumps(config))
    assert there.additional_config["other"] == "one"
    assert OrthrusConfig.of(there) == OrthrusConfig.of(config)
    assert OrthrusConfig.of(there).policy == "fcfs"
    assert there.compute_hash() == config.compute_hash()
