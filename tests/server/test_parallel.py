"""One engine over four workers, two pipeline stages of two tensor-parallel ranks, against transformers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from server_process import Server
from transformers import AutoModelForCausalLM
from vectors import cosines, embed, ids

pytestmark = pytest.mark.timeout(600)

OUTPUT = 24


@pytest.fixture(scope="module")
def parallel(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ["--pipeline-parallel-size", "2", "--tensor-parallel-size", "2", "--served-model-name", "tiny"]
    flags += ["--max-model-len", "1024", "--max-num-batched-tokens", "96", "--policy", "ibs"]
    with Server(tmp_path_factory.mktemp("parallel") / "log", tiny_model, *flags) as started:
        yield started.wait_until_ready(timeout_s=540)  # four workers import and load at once


def complete(client: httpx.Client, prompt: list[int]) -> list[int]:
    body = {"prompt": prompt, "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True}
    answer = client.post("/v1/completions", json={**body, "return_token_ids": True})
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def test_both_kinds_in_a_pipeline_equal_transformers(parallel: Server, tiny_model: Path):
    prompts = [ids(i, 20 + 30 * i) for i in range(4)]
    texts = [ids(50 + i, 5 + 70 * i) for i in range(6)]
    with parallel.client() as client, ThreadPoolExecutor(10) as pool:
        embed(client, texts[:2])  # a step of embeddings only
        vectors = [pool.submit(embed, client, text) for text in texts]
        outputs = [pool.submit(complete, client, prompt) for prompt in prompts]
        got = np.concatenate([vector.result() for vector in vectors])
        written = [output.result() for output in outputs]
        state = client.get("/orthrus/state").json()
    network = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    with torch.inference_mode():
        states = [network.model(torch.tensor([text])).last_hidden_state[0] for text in texts]
        wanted = np.stack([rows.double().mean(0).numpy() for rows in states])
        for prompt, tokens in zip(prompts, written, strict=True):
            sequence = list(prompt)
            for _ in range(OUTPUT):
                sequence.append(int(network(torch.tensor([sequence])).logits[0, -1].argmax()))
            assert sequence[len(prompt) :] == tokens
    assert cosines(got, wanted).min() > 0.99999
    assert len(state["workers"]) == 4
    assert not any(state["scheduler"].values())
    assert not any(count for worker in state["workers"] for count in worker.values())
