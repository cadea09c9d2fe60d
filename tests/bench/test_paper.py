import pytest
from typer.testing import CliRunner

from orthrus.bench.paper.command import document, parse_devices
from orthrus.bench.paper.experiments import EXPERIMENTS, on_devices, spec_of
from orthrus.bench.paper.view import Line, View
from orthrus.bench.report import Table
from orthrus.bench.run import Bench
from orthrus.bench.spec import SpecError
from orthrus.cli_bench import app


def value(median):
    return {"median": median, "min": median, "max": median, "n": 1}


def table(rows):
    return Table({key: {name: value(number) for name, number in row.items()} for key, row in rows.items()})


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_spec_whose_topologies_fit_its_devices(name, tmp_path, monkeypatch):
    monkeypatch.setattr("orthrus.bench.run.locate", lambda model: model)
    spec = spec_of(name)
    assert spec.name == name
    assert spec.repetitions >= 3
    bench = Bench(spec, tmp_path)
    cells = [cell for _, _, group in bench.groups for cell in group]
    assert {cell.topology.name for cell in cells} == {topology.name for topology in spec.topologies}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_compared_before_anything_is_measured(name):
    spec = spec_of(name)
    rows = {
        (topology.name, workload.name, load.label()): {}
        for topology in spec.topologies
        for workload in spec.expanded()
        for load in spec.load
    }
    lines = EXPERIMENTS[name].lines(View(table(rows)))
    assert lines
    assert all(line.ours.startswith("–") for line in lines)
    assert all(line.paper for line in lines)


def test_figure_3_compares_each_baseline_at_each_mix():
    rows = {
        ("dedicated-1+1", "mix-0.1", "c32"): {"requests_per_s": 5.0},
        ("orthrus", "mix-0.1", "c32"): {"requests_per_s": 8.0},
    }
    (line,) = EXPERIMENTS["fig3"].lines(View(table(rows)))
    assert line.quantity == "mix-0.1: requests/s, orthrus over dedicated-1+1"
    assert (line.paper, line.ours) == ("1.28–4.52× (GPU-level splits, over all ratios)", "1.60×")


def test_figure_7_states_the_swing():
    rows = {
        ("chunk-128", "half", "c8"): {"requests_per_s": 2.0},
        ("chunk-512", "half", "c8"): {"requests_per_s": 1.9},
        ("budget-4096", "half", "c8"): {"requests_per_s": 1.95},
    }
    lines = {line.quantity: line.ours for line in EXPERIMENTS["fig7"].lines(View(table(rows)))}
    assert lines["chunk sweep: combined requests/s"] == "1.9–2 (5.0% apart)"
    assert lines["budget sweep: combined requests/s"] == "1.9–1.95 (2.6% apart)"


def test_figure_6_takes_the_stock_server_of_the_kind():
    rows = {
        ("dedicated-0+1", "generate", "c64"): {"work_per_s": 4.0},
        ("dedicated-1+0", "embed", "c64"): {"work_per_s": 5.0},
        ("orthrus", "generate", "c64"): {"work_per_s": 4.04},
        ("orthrus", "embed", "c64"): {"work_per_s": 5.5},
    }
    lines = {line.quantity: line.ours for line in EXPERIMENTS["fig6"].lines(View(table(rows)))}
    assert lines["pure generate, 64 clients: tokens/s over stock vLLM"] == "1.01×"
    assert lines["pure embed, 64 clients: tokens/s over stock vLLM"] == "1.10×"


def test_more_devices_give_the_split_more_generators():
    spec = on_devices(spec_of("fig3"), parse_devices("gpu:0,1,2,3"))
    assert spec.topologies[0].topology == "dedicated:1+3"
    assert spec.devices.kind == "gpu"
    assert on_devices(spec_of("fig6"), parse_devices("gpu:2,3")).devices.ids == [2]


@pytest.mark.parametrize("text", ["cpu", "tpu:0", "gpu:a", "cpu:0,0"])
def test_devices_that_are_not_allowed(text):
    with pytest.raises(SpecError, match=f"--devices {text}"):
        parse_devices(text)


def test_the_comparison_as_markdown():
    text = document("fig3", [Line("a", "1×", "2×")], ["The model."])
    assert "| a | 1× | 2× |" in text
    assert text.endswith("- The model.\n")


def test_names_are_listed_and_checked():
    listed = CliRunner().invoke(app, ["paper", "list"])
    assert "fig3     Throughput at every mix" in listed.output
    assert "tab8     see: orthrus simulate fill" in listed.output
    wrong = CliRunner().invoke(app, ["paper", "fig9"])
    assert wrong.exit_code == 2
    assert "no experiment 'fig9'; known: fig3" in wrong.stderr
