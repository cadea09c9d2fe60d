"""`orthrus simulate fill` reproduces the figures that docs/policy.md gives."""

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from orthrus.cli_simulate import app
from orthrus.sim.fill_sweep import SWEEP

DOCS = Path(__file__).parents[1] / "docs" / "policy.md"


def run(*arguments):
    return CliRunner().invoke(app, ["fill", *arguments], env={"COLUMNS": "200"})


def test_the_documented_figures_come_out():
    document = json.loads(run("--json").output)
    rows = {result["embedding"]: result for result in document["results"]}
    measured = {
        name: [f"{row['fill'] * 100:.1f}", f"{row['generation_per_s']:.1f}", f"{row['embedding_per_s']:.1f}"]
        for name, row in rows.items()
    }
    assert measured == {
        "atomic": ["8.8", "93.2", "25.4"],
        "whole-chunks": ["85.0", "93.2", "26.9"],
        "chunked": ["100.0", "93.3", "27.0"],
    }
    for name, figures in measured.items():
        line = re.search(rf"^\| {name} \|.*$", DOCS.read_text(), re.MULTILINE)
        assert line is not None
        assert [cell.strip().split(" ")[0] for cell in line[0].split("|")[2:5]] == figures


def test_every_assumption_is_printed_and_documented():
    output = run("--window", "1").output
    document = json.loads(run("--window", "1", "--json").output)
    assert len(document["assumptions"]) == 7
    for sentence in document["assumptions"]:
        assert sentence in output
    text = " ".join(DOCS.read_text().split())
    for sentence in json.loads(run("--json").output)["assumptions"]:
        assert sentence in text
    assert document["paper"]["atomic"] == {
        "fill_percent": 8.8,
        "generation_per_s": 93.3,
        "embedding_per_s": 25.5,
    }


def test_the_sweep_has_a_row_for_every_variation():
    document = json.loads(run("--window", "0.5", "--sweep", "--json").output)
    assert len(document["sweep"]) == sum(len(variations) for _, variations in SWEEP)
    assert all(len(row["results"]) == 3 for row in document["sweep"])


def test_a_bad_value_is_named():
    result = run("--budget", "0")
    assert result.exit_code == 2
    assert "budget is 0" in result.output
