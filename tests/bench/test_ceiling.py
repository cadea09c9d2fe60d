import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from orthrus.bench.ceiling import Ceiling, ModelSize, measured, model_size, utilisation
from orthrus.bench.spec import Devices


def save(folder, **tensors):
    arrays = {name: np.zeros(shape, np.float16) for name, shape in tensors.items()}
    save_file(arrays, folder / "model.safetensors")


def test_a_tied_head_is_the_token_embedding(tmp_path):
    save(tmp_path, **{"model.embed_tokens.weight": (100, 8), "layer.weight": (8, 8)})
    size = model_size(tmp_path)
    assert (size.weights, size.head, size.body) == (864, 800, 64)
    assert size.bytes == (tmp_path / "model.safetensors").stat().st_size


def test_an_untied_token_embedding_is_no_work(tmp_path):
    save(
        tmp_path,
        **{"model.embed_tokens.weight": (100, 8), "lm_head.weight": (100, 8), "layer.weight": (8, 8)},
    )
    size = model_size(tmp_path)
    assert (size.weights, size.head, size.body) == (864, 800, 64)
    assert size.bytes == (tmp_path / "model.safetensors").stat().st_size - 1600
    assert model_size(tmp_path / "no-such-folder") is None


def test_utilisation_counts_two_flops_a_weight_and_one_read_a_step():
    figures = {
        "embedded_tokens_per_s": 50.0,
        "prefilled_tokens_per_s": 30.0,
        "decoded_tokens_per_s": 20.0,
        "steps_per_s": 10.0,
    }
    found = utilisation(figures, 2, ModelSize(weights=1000, head=400, bytes=3000), Ceiling(1e6, 1e5))
    assert found["flop_utilisation"] == pytest.approx((100 * 600 * 2 + 20 * 400 * 2) / 2e6)
    assert found["bandwidth_utilisation"] == pytest.approx(10 * 3000 / 2e5)


def test_a_ceiling_is_measured_once_and_kept(tmp_path):
    (tmp_path / "ceiling.json").write_text(json.dumps({"flops_per_s": 2.0, "bytes_per_s": 3.0}))
    assert measured(Devices(ids=[0]), tmp_path) == Ceiling(2.0, 3.0)
