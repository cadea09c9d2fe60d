"""Cases A7, A8 and A11: a vector depends on its text alone, and answers keep order and count exactly."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
from vectors import cosines, embed, embed_answer, rows, token_ids

LONG = " ".join(f"Sentence number {i} speaks of rivers and of hills." for i in range(40))
TEXTS = [LONG[: 37 * i + 1] for i in range(12)]
HEADS = ("mean", "weighted_mean", "cls", "last")


def test_a7_alone_in_a_batch_beside_decodes_and_after_a_shared_prefix(server, client):
    alone = {head: embed(client, LONG, pooling=head) for head in HEADS}

    def generate(prompt):
        with server.client() as own:
            body = {"prompt": prompt, "max_tokens": 48, "ignore_eos": True, "temperature": 0}
            return own.post("/v1/completions", json=body).json()["choices"][0]["text"]

    generate(LONG)
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(generate, f"{i}. Tell a story.") for i in range(3)]
        for head in HEADS:
            batch = embed(client, [*TEXTS, LONG], pooling=head)
            beside = embed(client, LONG, pooling=head)
            assert np.abs(batch[-1] - alone[head][0]).max() < 1e-4, head
            assert np.abs(beside - alone[head]).max() < 1e-4, head
        assert all(len(future.result()) > 0 for future in running)


def test_a8_neither_a_cache_hit_nor_a_salt_changes_a_vector(client):
    text = "A text that no other test uses, long enough to fill blocks of the cache. " * 8
    for head in HEADS:
        vectors = [embed(client, text, pooling=head, cache_salt=salt) for salt in (None, None, "a", "a", "b")]
        for vector in vectors[1:]:
            assert cosines(vectors[0], vector)[0] > 0.99999, head
    for salt in ("", 3):
        response = client.post("/v1/embeddings", json={"input": "a", "cache_salt": salt})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "cache_salt"


def test_a11_order_and_usage_under_concurrency(server, client):
    expected = embed(client, TEXTS)
    lengths = [len(token_ids(client, text)) for text in TEXTS]

    async def ask(asynchronous, rotation):
        order = [(rotation + i) % len(TEXTS) for i in range(len(TEXTS))]
        response = await asynchronous.post("/v1/embeddings", json={"input": [TEXTS[i] for i in order]})
        return order, response.json()

    async def ask_all():
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as asynchronous:
            return await asyncio.gather(*(ask(asynchronous, rotation) for rotation in range(6)))

    for order, answer in asyncio.run(ask_all()):
        assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == sum(lengths)
        assert answer["usage"]["completion_tokens"] == 0
        assert np.abs(rows(answer) - expected[order]).max() < 1e-4


def test_a11_usage_is_the_sum_over_texts_of_any_length(client):
    answer = embed_answer(client, [LONG, "a", LONG])
    assert answer["usage"]["prompt_tokens"] == 2 * len(token_ids(client, LONG)) + len(token_ids(client, "a"))
