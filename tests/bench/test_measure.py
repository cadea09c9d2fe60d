import subprocess
import sys
import time
from pathlib import Path

import pytest

from orthrus.bench.measure import DeviceUse, Meter, ServerUse, TreeCost, Usage, tree_cost
from orthrus.bench.run import usage_figures
from orthrus.bench.servers import Running
from orthrus.bench.topology import Plan

# A front end that starts a process titled like vLLM's worker, which burns half a second of processor time.
WORKER = (
    "import time, setproctitle; setproctitle.setproctitle('VLLM::Worker')\n"
    "while time.process_time() < 0.5: pass\n"
    "print('spent', flush=True); time.sleep(600)\n"
)
FRONTEND = (
    "import subprocess, sys\n"
    f"c = subprocess.Popen([sys.executable, '-c', {WORKER!r}], stdout=subprocess.PIPE)\n"
    "c.stdout.readline(); print('ready', flush=True); sys.stdin.read(); c.kill()"
)


@pytest.fixture
def server():
    process = subprocess.Popen(
        [sys.executable, "-c", FRONTEND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    yield process
    process.communicate(timeout=30)


def test_a_tree_is_split_into_worker_and_front_end(server):
    assert server.stdout.readline() == b"ready\n"
    cost = tree_cost(server.pid)
    assert cost.worker_seconds >= 0.49
    assert cost.engine_seconds == cost.worker_seconds
    assert 0 < cost.frontend_seconds < cost.worker_seconds
    assert cost.rss_bytes > cost.pss_bytes > 2**20  # two Pythons share their libraries


def test_a_window_counts_what_was_spent_within_it(server):
    meter = Meter([Running(Plan("s", 3, ("embed",), (), {}, 1), server, Path("log"))], gpus=False)
    server.stdout.readline()
    meter.begin()
    time.sleep(0.2)
    usage = meter.end()
    assert usage.seconds >= 0.2
    assert [device.device for device in usage.devices] == [3]
    assert usage.devices[0].utilisation < 0.2  # its half second was spent before
    assert usage.servers[0].cost.pss_bytes > 2**20


def test_a_process_that_has_gone_costs_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert tree_cost(process.pid) == TreeCost()


def test_figures_of_the_servers():
    cost = TreeCost(worker_seconds=3, engine_seconds=4, frontend_seconds=1, rss_bytes=2**31, pss_bytes=2**30)
    usage = Usage(
        seconds=5.0,
        servers=[ServerUse("a", 0, cost), ServerUse("b", 1, cost)],
        devices=[DeviceUse(0, 0.5), DeviceUse(1, 0.7)],
        core_busy={0: 0.9, 1: 1.0},
    )
    figures = usage_figures(usage)
    assert figures["device1_utilisation"] == 0.7
    assert figures["device_utilisation"] == pytest.approx(0.6)
    assert (figures["servers_pss_gib"], figures["servers_rss_gib"]) == (2, 4)
    assert (figures["engine_cpu_seconds"], figures["frontend_cpu_seconds"]) == (8, 2)
    assert figures["machine_busy_cores"] == pytest.approx(1.9)
    assert usage_figures(Usage(1.0, [], [], {})) == {}
