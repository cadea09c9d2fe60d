"""The head that sentence-transformers files ask for, in both schemas, and the order of precedence."""

import json
from pathlib import Path

import pytest

from orthrus.pooling import Head, PoolingConfigError
from orthrus.pooling.select import DenseSpec, PoolingRecipe, choose_head, read_recipe

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NEW_POOLING = {**POOLING, "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
NORMALIZE = {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}
IDENTITY = "torch.nn.modules.linear.Identity"


def write(folder: Path, modules, **configs):
    (folder / "modules.json").write_text(json.dumps(modules))
    for name, config in configs.items():
        target = folder / {"pooling": "1_Pooling", "dense": "2_Dense", "dense2": "3_Dense"}[name]
        target.mkdir()
        (target / "config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_without_sentence_transformers_files_has_no_recipe(tmp_path):
    assert read_recipe(tmp_path) is None


@pytest.mark.parametrize(
    ("flag", "mode", "head"),
    [
        ("pooling_mode_mean_tokens", "mean", Head.MEAN),
        ("pooling_mode_cls_token", "cls", Head.CLS),
        ("pooling_mode_lasttoken", "lasttoken", Head.LAST),
        ("pooling_mode_weightedmean_tokens", "weightedmean", Head.WEIGHTED_MEAN),
    ],
)
def test_both_schemas_name_the_same_head(tmp_path, flag, mode, head):
    flags = {f"pooling_mode_{m}": False for m in ("mean_tokens", "cls_token", "max_tokens", "lasttoken")}
    old, new, listed = tmp_path / "old", tmp_path / "new", tmp_path / "listed"
    for folder in (old, new, listed):
        folder.mkdir()
    write(old, [TRANSFORMER, POOLING], pooling={"word_embedding_dimension": 8, **flags, flag: True})
    write(
        new, [TRANSFORMER, NEW_POOLING, NORMALIZE], pooling={"embedding_dimension": 8, "pooling_mode": mode}
    )
    write(listed, [TRANSFORMER, NEW_POOLING], pooling={"pooling_mode": [mode], "include_prompt": True})
    assert read_recipe(old) == PoolingRecipe(head, 8, (), normalize=False)
    assert read_recipe(new) == PoolingRecipe(head, 8, (), normalize=True)
    assert read_recipe(listed) == PoolingRecipe(head, None, (), normalize=False)


def test_the_newer_key_wins_and_neither_means_mean_as_sentence_transformers_has_it(tmp_path):
    both, neither = tmp_path / "both", tmp_path / "neither"
    both.mkdir()
    neither.mkdir()
    write(both, [POOLING], pooling={"pooling_mode": "cls", "pooling_mode_mean_tokens": True})
    write(neither, [POOLING], pooling={})
    assert read_recipe(both).head is Head.CLS
    assert read_recipe(neither).head is Head.MEAN


def test_dense_layers_are_listed_in_order(tmp_path):
    second = {**DENSE, "path": "3_Dense"}
    write(
        tmp_path,
        [TRANSFORMER, POOLING, DENSE, second, NORMALIZE],
        pooling={"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True},
        dense={"in_features": 8, "out_features": 16, "bias": False, "activation_function": IDENTITY},
        dense2={"in_features": 16, "out_features": 4, "use_residual": True},
    )
    assert read_recipe(tmp_path).dense == (
        DenseSpec(tmp_path / "2_Dense", 8, 16, bias=False, activation=IDENTITY, residual=False),
        DenseSpec(
            tmp_path / "3_Dense",
            16,
            4,
            bias=True,
            activation="torch.nn.modules.activation.Tanh",
            residual=True,
        ),
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"pooling_mode_max_tokens": True},
            "pooling mode 'max' is not supported: allowed are mean, weightedmean",
        ),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "'mean_sqrt_len_tokens' is not supported"),
        ({"pooling_mode": ["cls", "mean"]}, r"exactly one pooling mode is supported, not \['cls', 'mean'\]"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "exactly one pooling mode"),
        ({"pooling_mode": []}, "exactly one pooling mode"),
        ({"pooling_mode": 3}, "exactly one pooling mode"),
        ({"pooling_mode": [["mean"]]}, "is not supported"),
        ({"pooling_mode_mean_tokens": "yes"}, "must be true or false"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt is False"),
        ({"pooling_mode": "mean", "embedding_dimension": 0}, "embedding_dimension must be a whole number"),
        ([], "expected a JSON object"),
    ],
)
def test_a_pooling_that_cannot_be_served_is_refused_and_named(tmp_path, config, message):
    write(tmp_path, [TRANSFORMER, POOLING], pooling=config)
    with pytest.raises(PoolingConfigError, match=message) as error:
        read_recipe(tmp_path)
    assert str(tmp_path / "1_Pooling" / "config.json") in str(error.value)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({}, "expected a JSON array"),
        ([{"path": ""}], "needs a 'type'"),
        ([TRANSFORMER], "there is no Pooling module"),
        ([TRANSFORMER, POOLING, POOLING], "Pooling stands in the wrong place"),
        ([TRANSFORMER, NORMALIZE, POOLING], "Normalize stands in the wrong place"),
        ([TRANSFORMER, POOLING, NORMALIZE, DENSE], "Dense stands in the wrong place"),
        ([POOLING, TRANSFORMER], "Transformer' is not supported here"),
        (
            [TRANSFORMER, POOLING, {"type": "sentence_transformers.models.LSTM"}],
            "LSTM' is not supported here",
        ),
        ([TRANSFORMER, {**POOLING, "type": "custom.Pooling"}], "'custom.Pooling' is not supported here"),
        ([TRANSFORMER, {**POOLING, "path": "../up"}], "must be a folder inside the checkpoint"),
        ([TRANSFORMER, {**POOLING, "path": 3}], "must be a folder inside the checkpoint"),
        ([TRANSFORMER, {**POOLING, "path": "absent"}], r"cannot read .*absent"),
    ],
)
def test_modules_that_cannot_be_served_are_refused(tmp_path, modules, message):
    write(tmp_path, modules, pooling={"pooling_mode": "mean"}, dense={"in_features": 8, "out_features": 8})
    with pytest.raises(PoolingConfigError, match=message):
        read_recipe(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"in_features": 9, "out_features": 4}, "in_features is 9, but 8 come from the layer before"),
        ({"out_features": 4}, "in_features must be a whole number"),
        ({"in_features": 8, "out_features": 4, "bias": "no"}, "bias must be true or false"),
        ({"in_features": 8, "out_features": 4, "activation_function": 1}, "must be a dotted name"),
        (
            {"in_features": 8, "out_features": 4, "module_input_name": "token_embeddings"},
            "only 'sentence_embedding'",
        ),
    ],
)
def test_a_dense_layer_that_cannot_be_served_is_refused(tmp_path, config, message):
    pooling = {"pooling_mode": "mean", "embedding_dimension": 8}
    write(tmp_path, [TRANSFORMER, POOLING, DENSE], pooling=pooling, dense=config)
    with pytest.raises(PoolingConfigError, match=message):
        read_recipe(tmp_path)


def test_broken_json_is_named(tmp_path):
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(PoolingConfigError, match=r"cannot read .*modules\.json"):
        read_recipe(tmp_path)


def test_each_source_of_a_head_overrides_the_one_before():
    everything = frozenset(Head)
    assert choose_head(allowed=everything) is Head.MEAN
    assert choose_head(allowed=everything, checkpoint=Head.CLS) is Head.CLS
    assert choose_head(allowed=everything, checkpoint=Head.CLS, adapter=Head.LAST) is Head.LAST
    sources = {"checkpoint": Head.CLS, "adapter": Head.LAST, "command_line": Head.MEAN}
    assert choose_head(allowed=everything, **sources) is Head.MEAN
    assert choose_head(allowed=everything, **sources, request="weighted_mean") is Head.WEIGHTED_MEAN


def test_a_head_that_the_server_does_not_allow_is_refused_with_its_source():
    streaming = frozenset(Head) - {Head.BUFFERED}
    with pytest.raises(
        PoolingConfigError, match=r"'buffered' \(the request's 'pooling'\).* allowed are mean,"
    ):
        choose_head(allowed=streaming, checkpoint=Head.CLS, request="buffered")
    with pytest.raises(PoolingConfigError, match=r"'last' \(the adapter's files\).*allowed are mean, cls$"):
        choose_head(allowed=[Head.CLS, Head.MEAN], adapter=Head.LAST)
    with pytest.raises(PoolingConfigError, match="unknown pooling head 'max'"):
        choose_head(allowed=streaming, request="max")
