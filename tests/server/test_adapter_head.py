"""`/v1/embeddings` with an adapter that brings its own head, as E5-Mistral does, beside the base's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from checkpoints import WIDTH, add_sentence_transformers_files
from safetensors.torch import save_file
from server_process import Server, serving
from transformers import AutoModelForCausalLM
from vectors import embed, refused

pytestmark = pytest.mark.engine

RANK = 4
LAYERS = 2
ADAPTERS = {"instruct": 1, "plain": 2, "projected": 3}


def update_of(seed: int) -> dict[str, torch.Tensor]:
    """Random low-rank factors of the output projections, large enough that a wrong adapter shows."""
    chance = torch.Generator().manual_seed(seed)
    return {
        f"base_model.model.model.layers.{i}.self_attn.o_proj.lora_{side}.weight": torch.randn(
            shape, generator=chance
        )
        / 4
        for i in range(LAYERS)
        for side, shape in (("A", (RANK, WIDTH)), ("B", (WIDTH, RANK)))
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, seed in ADAPTERS.items():
        folder = made[name] = tmp_path_factory.mktemp(name)
        save_file(update_of(seed), folder / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["o_proj"]}
        (folder / "adapter_config.json").write_text(json.dumps(config))
    for name, dense in (("instruct", None), ("projected", 8)):
        add_sentence_transformers_files(made[name], WIDTH, dense=dense)
        (made[name] / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    return made


@pytest.fixture(scope="module")
def adapted(
    tiny_model: Path, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    flags = ["--served-model-name", "base", "--max-model-len", "512", "--max-num-batched-tokens", "64"]
    flags += ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "3", "--max-num-seqs", "8"]
    flags += ["--lora-modules", *(f"{name}={folder}" for name, folder in folders.items())]
    with serving(tmp_path_factory.mktemp("adapted") / "log", tiny_model, *flags) as started:
        yield started


@pytest.fixture
def client(adapted: Server) -> Iterator[httpx.Client]:
    with adapted.client() as opened:
        yield opened


def hidden(model: Path, ids: list[int], adapter: str) -> np.ndarray:
    """Hidden states [n, d] by transformers, the adapter's update added to the weights."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    update = update_of(ADAPTERS[adapter]) if adapter in ADAPTERS else {}
    with torch.inference_mode():
        for name in [name for name in update if "lora_A" in name]:
            module = network.get_submodule(name.removeprefix("base_model.model.").split(".lora_A")[0])
            module.weight += update[name.replace("lora_A", "lora_B")] @ update[name]
        return network.model(torch.tensor([ids])).last_hidden_state[0].double().numpy()


def wanted(model: Path, documents: list[list[int]], adapter: str, head: str) -> np.ndarray:
    states = [hidden(model, ids, adapter) for ids in documents]
    vectors = np.stack([rows[-1] if head == "last" else rows.mean(0) for rows in states])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def documents() -> list[list[int]]:
    chance = np.random.default_rng(0)
    return [chance.integers(5, 256, length).tolist() for length in (1, 3, 40, 150)]


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("base", {}, "mean"),
    ("instruct", {}, "last"),
    ("plain", {}, "mean"),
    ("instruct", {"pooling": "mean"}, "mean"),
    ("base", {"pooling": "last"}, "last"),
]


def test_model_names_the_adapter_and_its_head(
    client: httpx.Client, tiny_model: Path, documents: list[list[int]]
) -> None:
    body = {"model": "base", "prompt": [5, 6, 7], "max_tokens": 200, "ignore_eos": True, "temperature": 0}
    alone = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    with ThreadPoolExecutor(len(CASES) + 1) as pool:
        writer = pool.submit(client.post, "/v1/completions", json=body)
        asked = [pool.submit(embed, client, documents, model=name, **extra) for name, extra, _ in CASES]
        for (name, extra, head), answer in zip(CASES, asked, strict=True):
            expected = wanted(tiny_model, documents, name, head)
            np.testing.assert_allclose(answer.result(), expected, atol=2e-5, err_msg=f"{name} {extra}")
        assert writer.result().json()["choices"][0]["text"] == alone


def test_an_adapters_projection_is_refused_with_the_reason(client: httpx.Client) -> None:
    error = refused(client, model="projected", input=[5, 6, 7])
    assert "Dense layers in an adapter's files are not supported" in error["message"]
    assert embed(client, [5, 6, 7], model="instruct").shape == (1, WIDTH)


def test_an_unknown_adapter_is_404(client: httpx.Client) -> None:
    assert "nobody" in refused(client, status=404, model="nobody", input=[5, 6, 7])["message"]
