import json
import subprocess

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from orthrus.bench.ceiling import Ceiling, ModelSize, main, measured, model_size, utilisation
from orthrus.bench.spec import Devices


def save(folder, **tensors):
    arrays = {name: np.zeros(shape, np.float16) for name, shape in tensors.items()}
    save_file(arrays, folder / "model.safetensors")


def test_a_tied_head_is_the_token_embedding(tmp_path):
    save(tmp_path, **{"model.embed_tokens.weight": (100, 8), "layer.weight": (8, 8)})
    size = model_size(tmp_path, "float16")
    assert size == ModelSize(weights=864, head=800, bytes=2 * 864)
    assert size.body == 64


def test_an_untied_token_embedding_is_no_work(tmp_path):
    save(
        tmp_path,
        **{"model.embed_tokens.weight": (100, 8), "lm_head.weight": (100, 8), "layer.weight": (8, 8)},
    )
    assert model_size(tmp_path, "float16") == ModelSize(weights=864, head=800, bytes=2 * 864)
    assert model_size(tmp_path / "no-such-folder", "float16") is None


@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("bfloat16", 2), ("auto", 2)])
def test_bytes_are_those_served_and_of_quantised_weights_those_stored(tmp_path, dtype, item):
    save(tmp_path, **{"model.embed_tokens.weight": (100, 8)})
    save_file({"layer.weight": np.zeros((8, 8), np.int8)}, tmp_path / "quantised.safetensors")
    size = model_size(tmp_path, dtype)
    assert (size.weights, size.bytes) == (864, 800 * item + 64)


def test_utilisation_counts_two_flops_a_weight_and_one_read_a_step():
    figures = {
        "embedded_tokens_per_s": 50.0,
        "prefilled_tokens_per_s": 30.0,
        "decoded_tokens_per_s": 20.0,
        "steps_per_s": 10.0,
    }
    size = ModelSize(weights=1000, head=400, bytes=3000)
    found = utilisation(figures, 2, size, Ceiling(1e6, 1e5, "float32"))
    assert found["flop_utilisation"] == pytest.approx((100 * 600 * 2 + 20 * 400 * 2) / 2e6)
    assert found["bandwidth_utilisation"] == pytest.approx(10 * 3000 / 2e5)


def test_a_ceiling_is_measured_once_for_each_dtype_and_kept(tmp_path, monkeypatch):
    commands = []

    def run(command, **kwargs):
        commands.append(command[-3:])
        answer = {"flops_per_s": 2.0 * len(commands), "bytes_per_s": 3.0, "dtype": command[-1]}
        return subprocess.CompletedProcess(command, 0, json.dumps(answer))

    monkeypatch.setattr("orthrus.bench.ceiling.subprocess.run", run)
    devices = Devices(ids=[3])
    found = [measured(devices, dtype, tmp_path) for dtype in ("float32", "float32", "bfloat16", "bfloat16")]
    assert found == [Ceiling(2.0, 3.0, "float32")] * 2 + [Ceiling(4.0, 3.0, "bfloat16")] * 2
    assert commands == [["cpu", "3", "float32"], ["cpu", "3", "bfloat16"]]


def test_a_real_measurement_is_in_the_dtype_asked_for(capsys, monkeypatch):
    monkeypatch.setattr("orthrus.bench.ceiling.SECONDS", 0.01)
    monkeypatch.setattr("orthrus.bench.ceiling.MATRIX", {"cpu": 64})
    monkeypatch.setattr("orthrus.bench.ceiling.BYTES", {"cpu": 2**16})
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: None)
    asked = []
    matmul = torch.matmul
    monkeypatch.setattr("torch.matmul", lambda a, b: asked.append(a.dtype) or matmul(a, b))
    main("cpu", "0", "float32")
    ceiling = Ceiling(**json.loads(capsys.readouterr().out))
    assert ceiling.dtype == "float32"
    assert set(asked) == {torch.float32}
    assert min(ceiling.flops_per_s, ceiling.bytes_per_s) > 1e6
