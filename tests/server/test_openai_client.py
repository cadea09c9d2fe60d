"""The official OpenAI client, unchanged, and vLLM's other routes beside generation."""

from __future__ import annotations

import asyncio

import numpy as np
import openai
import pytest
from vectors import cosines, embed

CHAT = [{"role": "user", "content": "Say hello."}]
TEXTS = ["A cat sleeps.", "A dog barks loudly."]


@pytest.fixture
def official(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120) as opened:
        yield opened


def test_embeddings_in_base64_which_is_its_default_and_in_floats(official, client):
    default = official.embeddings.create(model="sample", input=TEXTS)
    floats = official.embeddings.create(model="sample", input=TEXTS, encoding_format="float")
    assert [item.index for item in default.data] == [0, 1]
    assert [item.embedding for item in default.data] == [item.embedding for item in floats.data]
    assert np.allclose([item.embedding for item in default.data], embed(client, TEXTS), atol=1e-5)
    assert default.usage.prompt_tokens == default.usage.total_tokens > 0


def test_our_fields_pass_through_extra_body(official, client):
    answer = official.embeddings.create(
        model="sample", input=TEXTS, extra_body={"pooling": "last", "normalize": False}
    )
    assert np.allclose(
        [item.embedding for item in answer.data],
        embed(client, TEXTS, pooling="last", normalize=False),
        atol=1e-3,
    )


def test_chat_and_completions_whole_and_streamed(official):
    chat = official.chat.completions.create(model="sample", messages=CHAT, max_tokens=12, temperature=0)
    stream = official.chat.completions.create(
        model="sample", messages=CHAT, max_tokens=12, temperature=0, stream=True
    )
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in stream) == chat.choices[0].message.content
    )
    whole = official.completions.create(model="sample", prompt="One, two,", max_tokens=8, temperature=0)
    pieces = official.completions.create(
        model="sample", prompt="One, two,", max_tokens=8, temperature=0, stream=True
    )
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert whole.usage.completion_tokens == 8


def test_the_asynchronous_client_embeds_while_it_streams(server):
    async def work():
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="unused", max_retries=0
        ) as official:
            stream = await official.chat.completions.create(
                model="sample", messages=CHAT, max_tokens=24, temperature=0, stream=True
            )
            vectors = asyncio.gather(
                *(official.embeddings.create(model="sample", input=text) for text in TEXTS * 3)
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return text, await vectors

    text, vectors = asyncio.run(work())
    assert text
    first = np.array([answer.data[0].embedding for answer in vectors])
    assert cosines(first[:2], first[2:4]) == pytest.approx(1, abs=1e-4)


def test_errors_are_the_clients_own_classes(official):
    with pytest.raises(openai.BadRequestError, match="empty"):
        official.embeddings.create(model="sample", input="")
    with pytest.raises(openai.NotFoundError, match="nobody"):
        official.embeddings.create(model="nobody", input="a")
    with pytest.raises(openai.UnprocessableEntityError, match="at most 64"):
        official.embeddings.create(model="sample", input=["a"] * 65)


def test_the_models_list(official, client):
    assert [model.id for model in official.models.list()] == ["sample"]
    assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 1024


def test_tokenize_health_version_and_metrics(client):
    ids = client.post("/tokenize", json={"prompt": "hello world"}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": ids}).json()["prompt"] == "hello world"
    assert client.get("/health").status_code == 200
    assert client.get("/version").status_code == 200
    embed(client, "a")
    metrics = client.get("/metrics").text
    assert 'orthrus:scheduled_tokens_total{kind="embed"}' in metrics
    assert "vllm:num_requests_running" in metrics


def test_pooling_score_and_rerank(client):
    vectors = embed(client, TEXTS)
    pooled = client.post("/pooling", json={"input": TEXTS, "task": "embed"}).json()["data"]
    assert np.allclose([item["data"] for item in pooled], vectors, atol=1e-5)
    scores = client.post("/score", json={"queries": TEXTS[0], "documents": TEXTS}).json()["data"]
    expected = [1.0, float(cosines(vectors[0], vectors[1]))]
    assert [item["score"] for item in scores] == pytest.approx(expected, abs=1e-4)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        ranked = client.post(path, json={"query": TEXTS[1], "documents": TEXTS}).json()["results"]
        assert [item["index"] for item in ranked] == [1, 0]


def test_pooling_and_score_take_the_head_too(client):
    vectors = embed(client, TEXTS, pooling="last")
    pooled = client.post("/pooling", json={"input": TEXTS, "pooling": "last"}).json()["data"]
    assert np.allclose([item["data"] for item in pooled], vectors, atol=1e-5)
    body = {"queries": TEXTS[0], "documents": TEXTS[1:], "pooling": "last"}
    scores = client.post("/score", json=body).json()["data"]
    assert scores[0]["score"] == pytest.approx(float(cosines(vectors[0], vectors[1])), abs=1e-4)
    for path in ("/pooling", "/score", "/rerank"):
        body = {"input": "a", "queries": "a", "query": "a", "documents": ["a"], "pooling": "max"}
        response = client.post(path, json=body)
        assert response.status_code == 400, path
        assert "mean, weighted_mean, cls, last" in response.json()["error"]["message"]


def test_cohere_embed(client):
    body = {"model": "sample", "texts": TEXTS, "embedding_types": ["float"]}
    answer = client.post("/v2/embed", json=body).json()["embeddings"]["float"]
    assert np.allclose(answer, embed(client, TEXTS), atol=1e-5)
