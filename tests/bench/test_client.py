import asyncio
import time

import httpx
import pytest

from orthrus.bench.client import CUT, KEEP_ALIVE_S, Client, Targets
from orthrus.bench.workload import Request

VLLM_KEEP_ALIVE_S = 5
"""After this long vLLM's server closes an idle connection (VLLM_HTTP_TIMEOUT_KEEP_ALIVE, vllm/envs.py)."""


def generation(case=2000, tokens=4, **more):
    return Request(1, "generate", (case, 1500, 1501), tokens, **more)


async def send(url, request, *, timeout=30.0, targets=None):
    client = Client(targets or Targets([url], [url]), "fake", timeout=timeout)
    try:
        records = []
        record = await client.send(request, 0.0, time.monotonic(), records)
        assert records == [record]
        return record
    finally:
        await client.aclose()


async def test_a_stream_is_timed_token_by_token(fake_url):
    record = await send(fake_url, generation())
    assert record.ok
    assert (record.tokens_in, record.tokens_out, record.status) == (3, 4, 200)
    assert len(record.tokens) == 4
    assert record.start <= record.first == record.tokens[0]
    assert record.tokens == sorted(record.tokens)
    assert record.tokens[-1] <= record.end


async def test_an_embedding_has_its_tokens_and_no_output(fake_url):
    record = await send(fake_url, Request(1, "embed", (2000, 1500)))
    assert record.ok
    assert (record.tokens_in, record.tokens_out, record.tokens) == (2, 0, [])
    assert record.first == record.end


async def test_requests_ask_for_exact_lengths_and_the_adapter(fake_url):
    await send(fake_url, generation(adapter="r16"))
    await send(fake_url, Request(1, "embed", (2000, 1600), adapter="r8"))
    *_, generate, embed = httpx.get(f"{fake_url}/seen", trust_env=False).json()
    assert generate["model"] == "r16"
    assert (generate["max_tokens"], generate["ignore_eos"], generate["temperature"]) == (4, True, 0)
    assert generate["prompt"] == [2000, 1500, 1501]
    assert (embed["model"], embed["input"], embed["encoding_format"]) == ("r8", [2000, 1600], "base64")


async def test_the_key_of_the_environment_goes_along(fake_url, monkeypatch):
    keys = []
    for key in ("", "secret"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        await send(fake_url, generation())
        keys.append(httpx.get(f"{fake_url}/seen", trust_env=False).json()[-1]["key"])
    assert keys == [None, "Bearer secret"]


async def test_a_connection_is_used_again_only_while_the_server_keeps_it_open(fake_url, monkeypatch):
    assert KEEP_ALIVE_S < VLLM_KEEP_ALIVE_S
    monkeypatch.setattr("orthrus.bench.client.KEEP_ALIVE_S", 0.5)
    client = Client(Targets([fake_url], [fake_url]), "fake")
    for pause in (0.0, 0.6, 0.0):
        record = await client.send(Request(1, "embed", (2000,)), 0.0, time.monotonic(), [])
        assert record.ok
        await asyncio.sleep(pause)
    await client.aclose()
    seen = httpx.get(f"{fake_url}/seen", trust_env=False).json()[-3:]
    first, second, third = (request["client_port"] for request in seen)
    assert first == second != third


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        (generation(2001), 429, "HTTP 429 (Retry-After: 7): "),
        (Request(1, "embed", (2001,)), 429, "HTTP 429 (Retry-After: 7): "),
        (generation(2002), 200, "RemoteProtocolError: "),
        (generation(2003), 200, "error in the stream: "),
        (generation(2004), 200, "the stream ended before [DONE]"),
        (Request(1, "embed", (2006,)), 200, "no vector in the answer: "),
    ],
)
async def test_failures_end_up_in_the_record(fake_url, request_, status, message):
    record = await send(fake_url, request_)
    assert not record.ok
    assert record.status == status
    assert record.error.startswith(message)
    assert record.end is not None


async def test_tokens_before_a_disconnect_are_kept(fake_url):
    assert len((await send(fake_url, generation(2002))).tokens) == 2


async def test_a_silent_server_is_given_up(fake_url):
    record = await send(fake_url, generation(2005), timeout=0.3)
    assert record.error.startswith("ReadTimeout")
    assert len(record.tokens) == 1


async def test_a_server_that_is_not_there_is_an_error(fake_url):
    record = await send("http://127.0.0.1:9", generation())
    assert record.error.startswith("ConnectError")
    assert record.status is None


async def test_a_cancelled_request_is_written_down(fake_url):
    client = Client(Targets([fake_url], [fake_url]), "fake")
    records = []
    task = asyncio.ensure_future(client.send(generation(2005), 0.0, time.monotonic(), records))
    while not (records and records[0].tokens):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await client.aclose()
    assert records[0].error == CUT
    assert len(records[0].tokens) == 1


async def test_disaggregated_prefill_goes_first_and_counts_in_the_first_token(fake_url):
    targets = Targets([fake_url], [fake_url], prefill=[fake_url])
    record = await send(fake_url, generation(tokens=3), targets=targets)
    prefill, decode = httpx.get(f"{fake_url}/seen", trust_env=False).json()[-2:]
    assert record.ok
    assert (prefill["max_tokens"], prefill.get("stream")) == (1, None)
    assert (decode["max_tokens"], decode["stream"]) == (3, True)
    refused = await send(fake_url, generation(2001), targets=targets)
    assert refused.error.startswith("prefill: HTTP 429")


def test_routing_in_turn_and_to_the_least_busy():
    turn = Targets([], ["a", "b", "c"], routing="round-robin")
    assert [turn.take("generate") for _ in range(4)] == ["a", "b", "c", "a"]
    least = Targets([], ["a", "b"])
    assert [least.take("generate") for _ in range(2)] == ["a", "b"]
    least.give("b")
    # First the idle one; then both have one open, and it is b's turn.
    assert [least.take("generate") for _ in range(3)] == ["b", "b", "a"]
