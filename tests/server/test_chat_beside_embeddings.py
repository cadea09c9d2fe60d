"""A chat that arrives while a step of embeddings runs has it discarded, and the vectors are the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import sleep

import httpx
import numpy as np
import pytest
from vectors import embed

pytestmark = pytest.mark.engine


def discarded(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("orthrus:discarded_tokens_total"))


def test_a_running_step_of_embeddings_makes_way_for_a_chat(client: httpx.Client) -> None:
    before = discarded(client)
    with ThreadPoolExecutor() as pool:
        for attempt in range(40):  # a step is discarded in its first half only
            text = f"{attempt} " + "Long documents are read in chunks of many words. " * 80
            vectors = pool.submit(embed, client, [text])
            sleep(0.1 + 0.03 * (attempt % 10))
            chat = {"model": "sample", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            answer = client.post("/v1/chat/completions", json=chat)
            assert answer.json()["usage"]["completion_tokens"] == 1
            beside = vectors.result()
            if discarded(client) > before:
                break
        else:
            pytest.fail("no step was discarded")
    np.testing.assert_allclose(beside, embed(client, [text]), atol=1e-5)
