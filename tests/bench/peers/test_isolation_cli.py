import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orthrus.bench import isolation
from orthrus.cli_bench import app

FAKE = str(Path(__file__).parent.with_name("bench_fake_server.py"))
SHIPPED = Path(__file__).parents[3] / "bench-specs" / "isolation.yaml"
EMBED = '{"at": 0.02, "kind": "embed", "tokens": 4}\n'
CHAT = '{"at": 0, "kind": "generate", "tokens": 4, "output_tokens": 8}\n'
TRACES = {
    isolation.EMBED_ALONE: EMBED,
    isolation.EMBED_BESIDE: CHAT + EMBED,
    isolation.CHAT_ALONE: CHAT,
    isolation.CHAT_BEHIND: EMBED + CHAT,
}


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_PYTHON", sys.executable)
    monkeypatch.setenv("FAKE_SERVER", FAKE)
    for name, text in TRACES.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    workloads = "\n".join(f"  - {{name: {name}, type: trace, path: {name}.jsonl}}" for name in TRACES)
    path = tmp_path / "spec.yaml"
    path.write_text(
        f"name: peers\nmodel: fake\nrepetitions: 2\nnum_warmups: 1\ndevices: {{ids: [0]}}\n"
        f"workloads:\n{workloads}\nload: [{{type: trace}}]\ntopologies:\n"
        "  - {label: here, topology: 'command:${FAKE_PYTHON} ${FAKE_SERVER} {port}'}\n"
        "  - {label: not-installed, topology: 'command:${NO_SUCH_PEER} {port}'}\n"
    )
    return path


def test_one_command_measures_what_is_installed_and_names_what_is_not(spec, tmp_path):
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["isolation", str(spec), "--out", str(out), "--repetitions", "1"])
    assert done.exit_code == 1, done.output
    assert "NO_SUCH_PEER" in done.output
    head, _, row = (out / "isolation.md").read_text().splitlines()
    assert [part.strip() for part in head.split("|")[2:4]] == [
        "embedding alone, ms",
        "embedding beside streams, ms",
    ]
    values = [part.strip() for part in row.split("|")[1:-1]]
    assert values[0] == "here"
    assert all(float(value) > 0 for value in values[1:])
    again = [
        "isolation",
        str(spec),
        "--out",
        str(out),
        "--repetitions",
        "1",
        "--resume",
        "--topology",
        "here",
    ]
    done = CliRunner().invoke(app, again)
    assert done.exit_code == 0, done.output
    assert "0 cells measured, 4 kept" in done.output
    assert (out / "isolation.md").read_text().splitlines()[2] == row


def test_a_topology_that_the_spec_has_not_is_refused(spec):
    done = CliRunner().invoke(app, ["isolation", str(spec), "--topology", "vllm"])
    assert done.exit_code == 2
    assert "--topology vllm: the spec has here, not-installed" in done.output


def test_the_shipped_spec_has_the_four_workloads_and_both_peers():
    from orthrus.bench.spec import load_spec

    found = load_spec(SHIPPED)
    isolation.check(found)
    assert {"orthrus", "colocated", "llama.cpp", "openvino"} <= {item.name for item in found.topologies}
