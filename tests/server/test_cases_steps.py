"""Case A17, by the steps and not by the clock: neither kind waits while the other one works."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from server_process import Server


@pytest.mark.engine
def test_a17_neither_kind_waits_for_the_other(tiny_model, tmp_path):
    trace = tmp_path / "steps.jsonl"
    flags = ["--max-model-len", "4096", "--max-num-batched-tokens", "128", "--trace-steps", str(trace)]
    with Server(tmp_path / "log", tiny_model, *flags) as started:
        started.wait_until_ready()

        def ask(path, body):
            with started.client() as client:
                return client.post(path, json=body).status_code

        story = {"prompt": "w5", "max_tokens": 600, "ignore_eos": True}
        texts = {"input": ["w5 w6 w9 " * 300] * 16}
        with ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(ask, "/v1/completions", story) for _ in range(3)]
            asked += [pool.submit(ask, "/v1/embeddings", texts) for _ in range(3)]
            assert [answer.result() for answer in asked] == [200] * 6
        assert started.stop() == 0, started.tail()
    steps = [json.loads(line) for line in trace.read_text().splitlines()]
    decodes = [i for i, step in enumerate(steps) if step["tokens"]["decode"]]
    between = steps[decodes[0] : decodes[-1] + 1]
    assert any(step["mix"] == "mixed" for step in between)
    # Every running generation gets its token in every step, whatever the embeddings ask for.
    assert all(step["tokens"]["decode"] for step in between)
    # And no step leaves the embeddings out while they have tokens left.
    assert all(step["tokens"]["embed"] for step in between if step["remaining"]["embed"])
