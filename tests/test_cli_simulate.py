"""`orthrus simulate fill` reproduces the figures that docs/policy.md gives."""

import json
import re
from pathlib import Path

import pytest
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


HEADINGS = ("fill, %", "generation, req/s", "embedding, req/s", "steps", "ms a step", "decodes a step")


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_nothing_is_cut_in_a_narrow_terminal(columns):
    environment = {"COLUMNS": str(columns), "FORCE_COLOR": "1"}
    result = CliRunner().invoke(app, ["fill", "--window", "0.5", "--sweep"], env=environment)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", result.output).splitlines()
    assert "…" not in result.output
    assert max(map(len, lines)) == columns
    if columns >= 60:
        assert [line.split("│")[1].strip() for line in lines if line.startswith("│")][:6] == list(HEADINGS)


def test_a_pipe_gets_whole_lines():
    result = CliRunner().invoke(app, ["fill", "--window", "0.5", "--sweep"], env={"COLUMNS": "40"})
    assert "…" not in result.output
    (header,) = (line for line in result.output.splitlines() if "changed" in line and "┃" in line)
    assert [cell.strip() for cell in header.split("┃")[1:-1]] == ["changed", "to", *HEADINGS[:3]]
    assert re.search(r"│ +fixed cost of a step +│ +step_s 0 +│ +[\d.]+ / [\d.]+ / [\d.]+ │", result.output)


def test_a_bad_value_is_named():
    result = run("--budget", "0")
    assert result.exit_code == 2
    assert "budget is 0" in result.output
