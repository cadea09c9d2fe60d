"""The head of a request: its sources over one another, an adapter's files among them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from vllm.exceptions import VLLMValidationError

from orthrus.engine import checkpoint, requests
from orthrus.engine.config import CheckpointPooling, OrthrusConfig
from orthrus.pooling.errors import PoolingConfigError


def write_files(folder, mode, dense=False):
    kinds = ["Pooling", *(["Dense"] if dense else [])]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": kind} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    configs = {"Pooling": {"pooling_mode": mode}, "Dense": {"in_features": 4, "out_features": 2}}
    for kind in kinds:
        (folder / kind).mkdir()
        (folder / kind / "config.json").write_text(json.dumps(configs[kind]))
    return str(folder)


def settled(config, adapter=None, asked=None):
    """The head that the front end writes into a request."""
    extra = {"pooling": asked} if asked else None
    params = SimpleNamespace(extra_kwargs=extra, task="embed")
    lora = SimpleNamespace(lora_path=adapter) if adapter else None
    request = SimpleNamespace(
        pooling_params=params, lora_request=lora, prompt_token_ids=[1], prompt_embeds=None
    )
    requests._settle_head(request, config)
    return params.extra_kwargs["pooling"]


def test_each_source_overrides_the_one_before(tmp_path):
    adapter = write_files(tmp_path, "lasttoken")
    found = CheckpointPooling(folder="c", head="weighted_mean", normalize=True, size=4)
    with_files, with_flag = OrthrusConfig(checkpoint=found), OrthrusConfig(checkpoint=found, pooling="mean")
    assert settled(OrthrusConfig()) == "mean"
    assert settled(with_files) == "weighted_mean"
    assert settled(with_files, adapter) == "last"
    assert settled(with_flag, adapter) == "mean"
    assert settled(with_flag, adapter, "cls") == "cls"
    assert settled(with_files, str(tmp_path / "Pooling")) == "weighted_mean"


def test_a_head_that_is_not_allowed_is_refused_before_the_engine(tmp_path):
    with pytest.raises(VLLMValidationError, match="not allowed"):
        settled(OrthrusConfig(allowed_pooling=("mean",)), asked="last")
    with pytest.raises(VLLMValidationError, match="the adapter's files"):
        settled(OrthrusConfig(allowed_pooling=("mean",)), write_files(tmp_path, "cls"))


def test_dense_layers_of_an_adapter_are_refused(tmp_path):
    with pytest.raises(PoolingConfigError, match="Dense layers in an adapter"):
        checkpoint.adapter_head(write_files(tmp_path, "mean", dense=True))


def test_files_for_another_width_are_refused(tmp_path):
    recipe = checkpoint.recipe_in(write_files(tmp_path, "mean", dense=True))
    checkpoint.check_width(recipe, 4, tmp_path)
    with pytest.raises(PoolingConfigError, match="expect vectors of 4, the model gives 8"):
        checkpoint.check_width(recipe, 8, tmp_path)
