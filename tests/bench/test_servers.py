import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from orthrus.bench.servers import ServerError, Servers, free_port
from orthrus.bench.topology import Plan

FAKE = str(Path(__file__).with_name("bench_fake_server.py"))
# A server with a child that ignores SIGTERM, as a stuck engine might.
STUBBORN = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import signal, time;"
    " signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)'],"
    " stdout=subprocess.PIPE)\n"
    "child.stdout.readline()\n"
    "open(sys.argv[1], 'w').write(str(child.pid))\n"
    "import runpy\n"
    "sys.argv = ['fake', sys.argv[2]]\n"
    f"runpy.run_path({FAKE!r}, run_name='__main__')\n"
)


def plan(port, *command, name="fake", env=None):
    return Plan(name, 0, ("embed", "generate"), tuple(map(str, command)), env or {}, port)


def fake(port, **more):
    return plan(port, sys.executable, FAKE, port, **more)


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(pid):
    for _ in range(100):
        if gone(pid):
            return True
        time.sleep(0.05)
    return False


def test_servers_are_healthy_inside_and_gone_outside(tmp_path):
    waited = []
    with Servers(
        [fake(free_port()), fake(free_port(), name="other")], tmp_path, 60, waited.append
    ) as servers:
        pids = [server.process.pid for server in servers.running]
        servers.check()
        assert not any(map(gone, pids))
    assert waited
    assert all(map(gone, pids))
    assert {path.name for path in tmp_path.iterdir()} == {"fake.log", "other.log"}


def test_a_child_that_ignores_sigterm_is_killed(tmp_path):
    port = free_port()
    pid_file = tmp_path / "pid"
    command = plan(port, sys.executable, "-c", STUBBORN, pid_file, port)
    with Servers([command], tmp_path / "logs", 60):
        child = int(pid_file.read_text())
        assert not gone(child)
    assert wait_gone(child)


def test_a_server_that_dies_at_start_is_named_with_its_log(tmp_path):
    dying = plan(1, sys.executable, "-c", "import sys; sys.exit('no such flag --x')", name="embed-on-cpu0")
    well = fake(free_port(), name="well")
    with (
        pytest.raises(ServerError, match=r"embed-on-cpu0 ended with status 1; its log:\n  no such flag --x"),
        Servers([well, dying], tmp_path, 60),
    ):
        pytest.fail("must not be entered")
    assert not [p for p in psutil.process_iter() if str(well.port) in (_cmdline(p) or [])]


def test_a_server_that_is_never_ready_is_given_up_and_ended(tmp_path):
    pid_file = tmp_path / "pid"
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    with (
        pytest.raises(ServerError, match="was not ready after"),
        Servers([plan(1, sys.executable, "-c", code, pid_file)], tmp_path / "logs", 2),
    ):
        pytest.fail("must not be entered")
    assert wait_gone(int(pid_file.read_text()))


def test_a_death_while_running_is_noticed(tmp_path):
    with Servers([fake(free_port())], tmp_path, 60) as servers:
        servers.running[0].process.kill()
        servers.running[0].process.wait()
        with pytest.raises(ServerError, match="fake ended with status -9"):
            servers.check()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_an_interruption(tmp_path, number):
    """The harness itself, in a process of its own, is interrupted while it measures."""
    port = free_port()
    pid_file = tmp_path / "pid"
    script = tmp_path / "harness.py"
    script.write_text(
        "import time\n"
        "from pathlib import Path\n"
        "from orthrus.bench.session import terminated_as_exit\n"
        "from orthrus.bench.servers import Servers\n"
        "from orthrus.bench.topology import Plan\n"
        f"command = {(sys.executable, '-c', STUBBORN, str(pid_file), str(port))!r}\n"
        f"plan = Plan('s', 0, ('embed',), command, {{}}, {port})\n"
        f"with terminated_as_exit(), Servers([plan], Path({str(tmp_path / 'logs')!r}), 60):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
    )
    harness = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert harness.stdout.readline() == "ready\n"
        child = int(pid_file.read_text())
        parent = psutil.Process(child).ppid()
        os.kill(harness.pid, number)
        assert harness.wait(60) != 0
    finally:
        harness.kill()
        harness.wait()
        harness.stdout.close()
    assert wait_gone(child)
    assert wait_gone(parent)


def test_our_own_binding_is_not_handed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    code = (
        "import os, sys\n"
        "values = [os.environ.get(name) for name in ('VLLM_CPU_KVCACHE_SPACE', 'B')]\n"
        "open(sys.argv[1], 'w').write(str(values))"
    )
    out = tmp_path / "env"
    with (
        pytest.raises(ServerError),
        Servers([plan(1, sys.executable, "-c", code, out, env={"B": "2"})], tmp_path / "logs", 30),
    ):
        pytest.fail("must not be entered")
    assert out.read_text() == "[None, '2']"


def _cmdline(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return None
