"""Servers for the tests: one on the sample model for the whole session, others where a test needs them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from checkpoints import make_tiny
from server_process import MAX_MODEL_LEN, Server


@pytest.fixture(scope="session")
def sample_model() -> Path:
    from orthrus import models

    return Path(models.get("smollm2"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def server(sample_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The sample model in float32; ends with SIGTERM, after which nothing may be left."""
    flags = ["--served-model-name", "sample", "--max-model-len", str(MAX_MODEL_LEN)]
    flags += ["--max-num-batched-tokens", "256", "--max-num-seqs", "16", "--policy", "ibs", "--seed", "0"]
    flags += ["--max-embedding-inputs", "64", "--max-request-bytes", str(2**20)]
    with Server(tmp_path_factory.mktemp("server") / "log", sample_model, *flags) as started:
        started.wait_until_ready()
        yield started
        assert started.stop(signal.SIGTERM) == 0, started.tail()


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened
