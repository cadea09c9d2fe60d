"""A9 and the end of a server: NaN in a result, a dead engine, signals while it starts."""

from __future__ import annotations

import signal
import threading
import time

import httpx
import pytest
from checkpoints import WIDTH, make_tiny
from server_process import Server
from vectors import embed

FLAGS = ("--max-model-len", "4096", "--max-num-batched-tokens", "256")


@pytest.fixture(scope="module")
def fragile(tmp_path_factory):
    """A model whose word w7 gives NaN. The last test kills its engine."""
    folder = make_tiny(tmp_path_factory.mktemp("fragile"), nan_row=True)
    with Server(tmp_path_factory.mktemp("fragile-server") / "log", folder, *FLAGS) as started:
        yield started.wait_until_ready()


def test_a9_nan_is_an_error_that_names_its_item_and_never_an_answer(fragile):
    with fragile.client() as client:
        expected = embed(client, ["w5 w6 w9 " * 20])
        assert expected.shape == (1, WIDTH)
        for _ in range(3):
            for given, index in ((["w5 " * 40, "w6", "w7 w5 " * 40], 2), (["w7"], 0), (["w6", "w8 w7"], 1)):
                response = client.post("/v1/embeddings", json={"input": given})
                assert response.status_code == 500
                assert f"input[{index}] is not finite" in response.json()["error"]["message"]
            # Blocks of the KV cache that held NaN are used again.
            assert abs(embed(client, ["w5 w6 w9 " * 20]) - expected).max() < 1e-5
        for path in ("/pooling", "/v2/embed"):
            body = {"model": None, "input": "w7", "texts": ["w7"], "embedding_types": ["float"]}
            response = client.post(path, json=body)
            assert response.status_code == 500, (path, response.text)
            assert "null" not in response.text.split('"message"')[0]
        assert client.get("/health").status_code == 200


def test_a_dead_engine_answers_at_once_and_the_exit_status_is_1(fragile):
    answers: dict[str, httpx.Response] = {}

    def ask(name, path, **body):
        with fragile.client() as client:
            answers[name] = client.post(path, json=body)

    generate = {"prompt": "w5", "max_tokens": 4000, "ignore_eos": True}
    threads = [
        threading.Thread(target=ask, args=("whole", "/v1/completions"), kwargs=generate),
        threading.Thread(target=ask, args=("stream", "/v1/completions"), kwargs={**generate, "stream": True}),
        threading.Thread(
            target=ask, args=("embed", "/v1/embeddings"), kwargs={"input": ["w5 " * 4000] * 500}
        ),
    ]
    for thread in threads:
        thread.start()
    fragile.wait_until_running(3)
    fragile.engine_core().kill()
    assert fragile.wait() == 1, fragile.tail()
    for thread in threads:
        thread.join()
    assert answers["embed"].status_code == 503
    assert "the engine has died" in answers["embed"].json()["error"]["message"]
    # On a slow machine a generation can come to its end while the texts above are still tokenised.
    whole, stream = answers["whole"], answers["stream"].text
    assert whole.status_code == 503 or whole.json()["usage"]["completion_tokens"] == 4000
    assert "the engine has died" in stream or stream.endswith("data: [DONE]\n\n")


def test_a_server_that_is_killed_takes_its_engine_along(tiny_model, tmp_path):
    with Server(tmp_path / "log", tiny_model, *FLAGS) as started:
        started.wait_until_ready()
        assert started.stop(signal.SIGKILL) == -signal.SIGKILL
        assert "so the engine ends" in started.log.read_text()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_engine_starts_leaves_nothing(tiny_model, tmp_path, sent):
    with Server(tmp_path / "log", tiny_model, *FLAGS) as started:
        end = time.monotonic() + 200
        while not started.has_engine_core():
            assert time.monotonic() < end, started.tail()
            time.sleep(0.1)
        assert started.stop(sent) == 130, started.tail()
        assert "Application startup complete" not in started.log.read_text()
