import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from orthrus.bench.adapters import lora_flags, prepare, random_adapter
from orthrus.bench.spec import Adapter, SpecError


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    shapes = {"self_attn.q_proj": (12, 8), "mlp.down_proj": (8, 20)}
    weights = {
        f"model.layers.0.{name}.weight": np.full(shape, 3.0, np.float32) for name, shape in shapes.items()
    } | {"model.embed_tokens.weight": np.zeros((30, 8), np.float32)}
    save_file(weights, folder / "model.safetensors")
    return folder


def test_a_random_adapter_covers_every_projection_at_its_rank(checkpoint, tmp_path):
    folder = random_adapter(checkpoint, 4, tmp_path / "r4")
    tensors = load_file(folder / "adapter_model.safetensors")
    base = "base_model.model.model.layers.0"
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        f"{base}.self_attn.q_proj.lora_A.weight": (4, 8),
        f"{base}.self_attn.q_proj.lora_B.weight": (12, 4),
        f"{base}.mlp.down_proj.lora_A.weight": (4, 20),
        f"{base}.mlp.down_proj.lora_B.weight": (8, 4),
    }
    assert all(np.abs(tensor).min() > 0 for tensor in tensors.values())
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["target_modules"]) == (4, ["down_proj", "q_proj"])


@pytest.mark.parametrize("strength", [0.05, 0.5])
def test_the_update_has_the_strength_asked_for(checkpoint, tmp_path, strength):
    folder = random_adapter(checkpoint, 4, tmp_path / "adapter", seed=7, strength=strength)
    tensors = load_file(folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    for module, size in (("self_attn.q_proj", 12 * 8), ("mlp.down_proj", 8 * 20)):
        name = f"base_model.model.model.layers.0.{module}"
        update = scale * tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
        assert np.linalg.norm(update) == pytest.approx(strength * 3.0 * size**0.5, rel=1e-5)


def test_the_seed_makes_the_adapter(checkpoint, tmp_path):
    first, again, other = (
        load_file(random_adapter(checkpoint, 4, tmp_path / str(i), seed) / "adapter_model.safetensors")
        for i, seed in enumerate((1, 1, 2))
    )
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not any(np.array_equal(first[name], other[name]) for name in first)


def test_flags_serve_all_adapters_at_the_next_rank_vllm_allows(checkpoint, tmp_path):
    adapters = {"a": Adapter(rank=4), "b": Adapter(rank=12)}
    expected = [
        "--enable-lora",
        "--max-loras=2",
        "--max-lora-rank=16",
        "--lora-modules",
        f"a={tmp_path / 'made' / 'a'}",
        f"b={tmp_path / 'made' / 'b'}",
    ]
    assert lora_flags(adapters, tmp_path / "made") == expected
    assert not (tmp_path / "made").exists()
    prepare(adapters, str(checkpoint), tmp_path / "made")
    assert (tmp_path / "made" / "b" / "adapter_model.safetensors").is_file()
    by_path = {"c": Adapter(path=tmp_path / "made" / "b")}
    assert lora_flags(by_path, tmp_path)[2] == "--max-lora-rank=16"
    assert lora_flags({}, tmp_path) == []
    with pytest.raises(SpecError, match="rank 600, vLLM serves at most 512"):
        lora_flags({"a": Adapter(rank=600)}, tmp_path)


def test_an_adapter_by_path_must_be_one(checkpoint, tmp_path):
    with pytest.raises(SpecError, match=r"server.adapters.a: .* holds no adapter_config.json"):
        prepare({"a": Adapter(path=tmp_path)}, str(checkpoint), tmp_path)
    with pytest.raises(SpecError, match=r"holds no \*.safetensors; give adapters by path"):
        prepare({"a": Adapter(rank=8)}, "some/model-id", tmp_path)
