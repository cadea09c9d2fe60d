import sys

import pytest

from orthrus.bench.peers.command import PeerError, check_template, filled, installed
from orthrus.bench.spec import Devices, Server, SpecError, Topology, parse_spec
from orthrus.bench.topology import layout

PEER = "command:llama-server -m '${GGUF} x' --port {port} --cpu-range {device}-{device} -t {dtype} -p {model}"


def test_words_keep_their_spaces_and_braces_that_are_no_placeholder():
    words = filled(
        """a 'b {port}' --json={"x":{}} ${HOME}/{device}""".replace('"', '\\"'), {"port": "7", "device": "3"}
    )
    assert words == ("a", "b 7", '--json={"x":{}}', "${HOME}/3")


def test_environment_variables_are_put_in_when_the_server_starts():
    program = sys.executable
    assert installed(("${PY}", "x${A}y"), {"PY": program, "A": "1 2"}) == (program, "x1 2y")
    with pytest.raises(PeerError, match="not set in the environment: B, C"):
        installed((program, "${C}", "${B}${A}"), {"A": "1"})
    with pytest.raises(PeerError, match="no-such-server: no such program"):
        installed(("no-such-server",), {"PATH": "/usr/bin"})


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("server", "lacks {port}"),
        ("server {port} {nope}", r"unknown placeholders \['nope'\]"),
        ("server '{port}", "No closing quotation"),
    ],
)
def test_a_wrong_template_is_refused(template, message):
    with pytest.raises(ValueError, match=message):
        check_template(template)


def test_a_command_is_a_topology_of_one_server_on_every_device():
    topology = Topology(topology=PEER, label="llama.cpp", flags=["--more"])
    ports = iter((9001, 9002))
    server = Server(flags=["--enforce-eager"], env={"A": "1"}, dtype="float32")
    found = layout(topology, "/folder of/model", server, Devices(ids=[2, 3]), ports.__next__)
    assert found.plans[1].command == (
        *("llama-server", "-m", "${GGUF} x", "--port", "9002", "--cpu-range", "3-3"),
        *("-t", "float32", "-p", "/folder of/model", "--more"),
    )
    assert [plan.device for plan in found.plans] == [2, 3]
    assert all(plan.peer and plan.env == {"A": "1"} for plan in found.plans)
    assert found.embed == found.generate == ["http://127.0.0.1:9001", "http://127.0.0.1:9002"]


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ({"topology": PEER}, "needs a label"),
        ({"topology": "command:server", "label": "x"}, "lacks {port}"),
        ({"topology": "command: ", "label": "x"}, "is no topology"),
    ],
)
def test_a_spec_says_what_is_wrong_with_a_command(topology, message, tmp_path):
    document = {
        "name": "x",
        "model": "m",
        "workloads": [{"name": "w", "embed_share": 0.5}],
        "topologies": [topology],
        "load": [{"type": "closed", "max_concurrency": 1, "num_prompts": 1}],
    }
    with pytest.raises(SpecError, match=message):
        parse_spec(document, "spec", tmp_path)
