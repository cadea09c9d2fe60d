import json

import pytest

from orthrus.bench import tiny
from orthrus.bench.adapters import random_adapter
from orthrus.bench.ceiling import model_size

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Sizes small enough for a test, and stand-ins for the sample model's tokenizer files."""
    sample = tmp_path / "sample"
    sample.mkdir()
    for name in FILES:
        (sample / name).write_text(name)
    monkeypatch.setattr(tiny.models, "resolve", lambda name: str(sample) if name == "smollm2" else name)
    sizes = {"vocab_size": 64, "hidden_size": 36, "intermediate_size": 48, "num_hidden_layers": 1}
    monkeypatch.setattr(tiny, "SHAPE", tiny.SHAPE | sizes)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("tiny-mistral", "MistralForCausalLM"),
        ("tiny-qwen2", "Qwen2ForCausalLM"),
        ("tiny-llama3.1", "LlamaForCausalLM"),
    ],
)
def test_checkpoints_have_the_architecture_and_take_adapters(small, tmp_path, name, architecture):
    folder = tiny.build(name, tmp_path / name)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [architecture]
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    assert all((folder / file).read_text() == file for file in FILES)
    size = model_size(folder, "auto")
    assert size.head == 64 * 36  # tied
    assert 2 * size.weights <= size.bytes < 2 * size.weights + 10_000  # bfloat16 and a header
    adapter = json.loads((random_adapter(folder, 2, tmp_path / "r2") / "adapter_config.json").read_text())
    assert len(adapter["target_modules"]) == 7


def test_a_checkpoint_is_made_once(small, tmp_path):
    folder = tiny.build("tiny-qwen2", tmp_path / "once")
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert tiny.build("tiny-qwen2", tmp_path / "once") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_other_models_are_left_to_the_model_registry(small):
    assert tiny.locate("some/model") == "some/model"
