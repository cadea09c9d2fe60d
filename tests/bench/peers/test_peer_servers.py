import subprocess
import sys
from pathlib import Path

import pytest

from orthrus.bench.measure import Meter, tree_cost
from orthrus.bench.servers import ServerError, Servers, free_port
from orthrus.bench.topology import Plan

FAKE = str(Path(__file__).parent.with_name("bench_fake_server.py"))


def plan(*command, peer=True):
    port = free_port()
    words = tuple(str(port) if word == "PORT" else word for word in command)
    return Plan("embed+generate-on-cpu0", 0, ("embed", "generate"), words, {}, port, peer)


def test_a_peer_is_started_with_variables_of_our_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PEER_PYTHON", sys.executable)
    monkeypatch.setenv("PEER_SCRIPT", FAKE)
    with Servers([plan("${PEER_PYTHON}", "${PEER_SCRIPT}", "PORT")], tmp_path, 60) as servers:
        running = servers.running[0]
        meter = Meter([running], gpus=False)
        meter.begin()
        usage = meter.end()
        assert usage.servers[0].cost.engine_seconds == usage.servers[0].cost.worker_seconds
        assert usage.servers[0].cost.frontend_seconds == 0
        assert usage.servers[0].cost.rss_bytes > 0


def test_a_peer_that_is_not_installed_is_a_server_error_with_the_way_out(tmp_path):
    with (
        pytest.raises(ServerError, match=r"not set in the environment: NO_SUCH_GGUF .*Peers"),
        Servers([plan(sys.executable, "${NO_SUCH_GGUF}", "PORT")], tmp_path, 60),
    ):
        pass
    with (
        pytest.raises(ServerError, match="no-such-llama-server: no such program"),
        Servers([plan("no-such-llama-server", "PORT")], tmp_path, 60),
    ):
        pass


def test_vllm_commands_keep_their_dollars(tmp_path):
    echo = plan(sys.executable, "-c", "import sys; print(sys.argv[1])", "${HOME}", peer=False)
    with (
        pytest.raises(ServerError, match=r"ended with status 0; its log:\n  \$\{HOME\}"),
        Servers([echo], tmp_path, 60),
    ):
        pass


def test_all_processes_of_a_peer_are_engine():
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ntime.sleep(600)"
    peer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert peer.stdout.readline() == "done\n"
        cost, other = tree_cost(peer.pid, peer=True), tree_cost(peer.pid)
    finally:
        peer.kill()
        peer.communicate()
    assert cost.worker_seconds == cost.engine_seconds >= 0.2
    assert cost.frontend_seconds == 0
    assert other.engine_seconds == 0
    assert other.frontend_seconds >= 0.2
