import os
import sys
import types

import numpy as np
import psutil
import pytest

from orthrus.bench.peers.openvino.embedder import Embedder, Model, model_inputs, pooled
from orthrus.bench.peers.openvino.extra import AdapterError, properties

THREE = ("input_ids", "attention_mask", "position_ids")


def test_position_ids_count_from_nought_in_every_row():
    found = model_inputs([[7, 8, 9], [5]], THREE)
    assert found["input_ids"].tolist() == [[7, 8, 9], [5, 0, 0]]
    assert found["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert found["position_ids"].tolist() == [[0, 1, 2], [0, 0, 0]]
    assert {value.dtype for value in found.values()} == {np.dtype(np.int64)}


def test_a_model_is_given_what_it_asks_for_and_no_more():
    assert list(model_inputs([[7]], THREE[:2])) == ["input_ids", "attention_mask"]
    with pytest.raises(AdapterError, match="token_type_ids"):
        model_inputs([[7]], (*THREE, "token_type_ids"))


def test_padding_does_not_count_in_the_mean():
    hidden = np.array([[[3.0, 4.0], [3.0, 4.0]], [[0.0, 2.0], [np.nan, 9.0]]], dtype=np.float32)
    assert pooled(hidden, [[1, 1], [1]]) == pytest.approx(np.array([[0.6, 0.8], [0.0, 1.0]]))


class FakeRequest:
    """A model whose state of a token is (id, position): unset positions would show."""

    model_inputs = tuple(types.SimpleNamespace(any_name=name) for name in THREE)

    def infer(self, inputs):
        self.hidden = np.stack([inputs["input_ids"], inputs["position_ids"]], axis=2).astype(np.float32)

    def get_output_tensor(self, index):
        return types.SimpleNamespace(data=self.hidden)


def test_the_model_is_compiled_and_run_with_its_positions(monkeypatch, tmp_path):
    request = FakeRequest()
    compiled = types.SimpleNamespace(create_infer_request=lambda: request)
    seen = []
    core = types.SimpleNamespace(compile_model=lambda *given: seen.append(given) or compiled)
    monkeypatch.setitem(sys.modules, "openvino", types.SimpleNamespace(Core=lambda: core))
    found = Model(tmp_path, properties("bfloat16", 1)).embed([[3, 5], [8]])
    expected = np.array([[4, 0.5], [8, 0]]) / np.array([[np.hypot(4, 0.5)], [8]])
    assert found == pytest.approx(expected)
    assert seen[0][:2] == (tmp_path / "openvino_model.xml", "CPU")
    assert seen[0][2]["INFERENCE_PRECISION_HINT"] == "bf16"
    assert "KV_CACHE_PRECISION" not in seen[0][2]


class Where:
    """A model that answers with its process and the cores it may use."""

    def __init__(self, folder, properties):
        if folder.name == "broken":
            raise ValueError("no such model")

    def embed(self, batch):
        return [os.getpid(), os.sched_getaffinity(0), batch]


def test_the_embedder_runs_on_its_cores_only_in_a_process_of_its_own(tmp_path):
    before = os.sched_getaffinity(0)
    embedder = Embedder(tmp_path, [min(before)], {}, Where)
    try:
        process, cores, batch = embedder.submit([[3, 5]]).result()
    finally:
        embedder.close()
    assert (cores, batch) == ({min(before)}, [[3, 5]])
    assert process != os.getpid()
    assert not psutil.pid_exists(process)
    assert os.sched_getaffinity(0) == before


def test_a_model_that_cannot_be_loaded_ends_the_start(tmp_path):
    with pytest.raises(AdapterError, match="broken cannot be loaded"):
        Embedder(tmp_path / "broken", [0], {}, Where)
