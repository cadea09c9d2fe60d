import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def fake_url():
    """Base URL of the fake server, in a process of its own."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("bench_fake_server.py")), str(port)]
    )
    try:
        for _ in range(200):
            try:
                httpx.get(f"{url}/health", trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()
