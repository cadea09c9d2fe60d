"""Projection, dimensions, norm and the check for non-finite values."""

import pytest
import torch
from safetensors.torch import save_file

from orthrus.pooling import PoolingConfigError, PoolingStateError
from orthrus.pooling.finishing import DenseLayer, check_dimensions, finish_vectors
from orthrus.pooling.select import DenseSpec

IDENTITY = "torch.nn.modules.linear.Identity"
TANH = "torch.nn.modules.activation.Tanh"


def spec(folder, activation=IDENTITY, **changes):
    fields = {"in_features": 3, "out_features": 2, "bias": True, "residual": False, **changes}
    return DenseSpec(path=folder, activation=activation, **fields)


def weights(**changes):
    return {
        "linear.weight": torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0]]),
        "linear.bias": torch.tensor([0.5, 0.0]),
        **changes,
    }


def test_a_dense_layer_computes_in_float32_from_safetensors(tmp_path):
    save_file({name: w.bfloat16() for name, w in weights().items()}, tmp_path / "model.safetensors")
    assert DenseLayer(spec(tmp_path))(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[7.5, -1.0]]


def test_a_dense_layer_reads_the_older_weights_file_and_applies_its_activation(tmp_path):
    torch.save(weights(), tmp_path / "pytorch_model.bin")
    got = DenseLayer(spec(tmp_path, TANH))(torch.tensor([[1.0, 2.0, 3.0]]))
    torch.testing.assert_close(got, torch.tensor([[7.5, -1.0]]).tanh())


@pytest.mark.parametrize(
    "activation",
    [
        "os.system",
        "torch.load",
        "torch.nn.functional.relu",
        "torch.nn.no_such.Tanh",
        "torch.nn.NoSuch",
        "torch.nn.modules.module.OrderedDict",
        "torch.nnx.Tanh",
        "torch.nn.Linear",
        "torch.nn.Module",
        "torch.nn.GLU",
        "Tanh",
    ],
)
def test_only_torch_nn_classes_are_activations(tmp_path, activation):
    save_file(weights(), tmp_path / "model.safetensors")
    with pytest.raises(PoolingConfigError, match=r"is not allowed: name a torch\.nn class"):
        DenseLayer(spec(tmp_path, activation))


def test_weights_that_are_missing_broken_or_misshapen_are_refused(tmp_path):
    with pytest.raises(PoolingConfigError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        DenseLayer(spec(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"not weights")
    with pytest.raises(PoolingConfigError, match="cannot read the weights"):
        DenseLayer(spec(tmp_path))
    torch.save([1, 2], tmp_path / "pytorch_model.bin")
    with pytest.raises(PoolingConfigError, match="no named tensors"):
        DenseLayer(spec(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(PoolingConfigError, match="cannot read the weights"):
        DenseLayer(spec(tmp_path))
    save_file(weights(), tmp_path / "model.safetensors")
    for changes in ({"out_features": 4}, {"bias": False}, {"residual": True}):
        with pytest.raises(PoolingConfigError, match="the weights should be"):
            DenseLayer(spec(tmp_path, **changes))


def test_pooled_vectors_of_another_width_are_refused(tmp_path):
    save_file(weights(), tmp_path / "model.safetensors")
    with pytest.raises(PoolingStateError, match="takes vectors of 3, the pooled ones have 4"):
        DenseLayer(spec(tmp_path))(torch.ones(1, 4))


def test_truncation_comes_before_the_norm():
    pooled = torch.tensor([[3.0, 4.0, 12.0]] * 4)
    done = finish_vectors(pooled, [], [None, 2, 2, 3], [True, True, False, False])
    assert done.nonfinite == []
    for got, want in zip(
        done.vectors, [[3 / 13, 4 / 13, 12 / 13], [0.6, 0.8], [3.0, 4.0], [3.0, 4.0, 12.0]], strict=True
    ):
        assert got.tolist() == pytest.approx(want, rel=1e-6)
    assert pooled.tolist() == [[3.0, 4.0, 12.0]] * 4


def test_non_finite_rows_are_named_and_the_others_are_unharmed(tmp_path):
    save_file(weights(), tmp_path / "model.safetensors")
    nan, inf = float("nan"), float("inf")
    pooled = torch.tensor(
        [[1.0, 2.0, 3.0], [nan, 0.0, 0.0], [1.0, 2.0, 3.0], [0.0, inf, 0.0], [0.0, 0.0, -inf]]
    )
    done = finish_vectors(pooled, [DenseLayer(spec(tmp_path))], [None] * 5, [False] * 5)
    assert done.nonfinite == [1, 3, 4]
    assert done.vectors[0].tolist() == done.vectors[2].tolist() == [7.5, -1.0]


def test_a_norm_that_overflows_is_reported_only_where_it_is_used_and_zero_stays_zero():
    pooled = torch.tensor([[3e30, 4e30], [3e30, 4e30], [0.0, 0.0]])
    done = finish_vectors(pooled, [], [None] * 3, [True, False, True])
    assert done.nonfinite == [0]
    assert done.vectors[1].tolist() == pooled[1].tolist()
    assert done.vectors[2].tolist() == [0.0, 0.0]


def test_nothing_to_finish_is_allowed_and_ragged_arguments_are_not():
    assert finish_vectors(torch.empty(0, 3), [], [], []).vectors == []
    with pytest.raises(PoolingStateError, match="2 vectors, 1 dimensions and 2 normalize flags"):
        finish_vectors(torch.ones(2, 3), [], [None], [True, True])
    with pytest.raises(PoolingConfigError, match="dimensions must be between 1 and 3, not 4"):
        finish_vectors(torch.ones(1, 3), [], [4], [True])


def test_dimensions_are_refused_with_the_allowed_range():
    for allowed in (None, 8):
        check_dimensions(allowed, 8, may_truncate=False)
        check_dimensions(allowed, 8, may_truncate=True)
    check_dimensions(1, 8, may_truncate=True)
    for wrong in (0, -1, 9):
        with pytest.raises(PoolingConfigError, match=f"between 1 and 8, not {wrong}"):
            check_dimensions(wrong, 8, may_truncate=True)
    with pytest.raises(PoolingConfigError, match=r"must be 8 \(this model's size\), not 4"):
        check_dimensions(4, 8, may_truncate=False)
