"""An adapter that carries its own head (as E5-Mistral: LoRA and last token) beside a base that uses mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_driver import Job, assert_idle, embed, generate, pooled, run, tokens
from safetensors.torch import load_file
from test_checkpoint import write_files
from transformers import AutoModelForCausalLM
from vllm.lora.request import LoRARequest

from orthrus.bench.adapters import random_adapter

pytestmark = pytest.mark.engine

LENGTHS = (1, 2, 3, 40, 129, 200)
STRENGTH = 0.5
"""Norm of an update relative to its weight's: so large that a wrong adapter cannot pass for the right one."""


@pytest.fixture(scope="module")
def instruct(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = random_adapter(tiny_model, 8, tmp_path_factory.mktemp("instruct"), seed=1, strength=STRENGTH)
    write_files(folder, "lasttoken")
    return folder


@pytest.fixture(scope="module")
def plain(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_adapter(tiny_model, 8, tmp_path_factory.mktemp("plain"), seed=2, strength=STRENGTH)


@pytest.fixture(scope="module")
def states(tiny_model: Path) -> Callable[..., torch.Tensor]:
    """Hidden states [n, d] by transformers, the adapter's update (alpha = rank) added to the weights."""

    def of(prompt: list[int], adapter: Path | None) -> torch.Tensor:
        network = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
        update = load_file(adapter / "adapter_model.safetensors") if adapter else {}
        weights = dict(network.named_parameters())
        with torch.inference_mode():
            for name in [name for name in update if name.endswith("lora_A.weight")]:
                module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                weights[f"{module}.weight"] += update[name.replace("lora_A", "lora_B")] @ update[name]
            return network.model(torch.tensor([prompt])).last_hidden_state[0]

    return of


def test_each_row_of_a_step_has_its_own_adapters_head(
    engine: Callable[..., Any], tiny_model: Path, instruct: Path, plain: Path, states: Any
) -> None:
    llm = engine(
        tiny_model, policy="ibs", max_num_batched_tokens=64, enable_lora=True, max_lora_rank=8, max_loras=2
    )
    folders = {"base": None, "instruct": instruct, "plain": plain}
    loras = {
        name: LoRARequest(name, i, str(folder)) if folder else None
        for i, (name, folder) in enumerate(folders.items())
    }
    # Who asks for nothing gets the adapter's head, else the engine's; who asks gets what it asks for.
    asked = {("base", None): "mean", ("instruct", None): "last", ("plain", None): "mean"}
    asked |= {("instruct", "mean"): "mean", ("base", "last"): "last"}
    prompts = {length: tokens(length, length) for length in LENGTHS}
    jobs = [
        Job(f"{name}-{request}-{length}", prompt, embed(request), at=i % 3, lora=loras[name])
        for i, length in enumerate(LENGTHS)
        for (name, request), prompt in zip(asked, [prompts[length]] * len(asked), strict=True)
    ]
    writers = [Job(f"writer-{name}", tokens(9, 20), generate(12), lora=lora) for name, lora in loras.items()]
    got = run(llm, [*writers, *jobs])
    for length, prompt in prompts.items():
        hidden = {name: states(prompt, folder) for name, folder in folders.items()}
        for (name, request), head in asked.items():
            vector = got[f"{name}-{request}-{length}"]
            np.testing.assert_allclose(
                vector, pooled(hidden[name], head), atol=2e-5, err_msg=f"{name} {head}"
            )
    alone = run(llm, writers)
    assert {job.name: got[job.name].tokens for job in writers} == {n: g.tokens for n, g in alone.items()}
    assert_idle(llm)
