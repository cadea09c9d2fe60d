import json

import httpx
import pytest
from typer.testing import CliRunner

from orthrus.cli_bench import app

SPEC = """
name: try
model: a-model
workloads: [{name: half}]
topologies: ["dedicated:1+1", orthrus]
load: [{type: closed, max_concurrency: 4, seconds: 10}]
repetitions: 1
server: {adapters: {r8: {rank: 8}}}
"""


@pytest.fixture
def spec_file(tmp_path):
    path = tmp_path / "SPEC.yaml"
    path.write_text(SPEC)
    return path


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_dry_run_shows_commands_and_cells_and_writes_nothing(spec_file, tmp_path):
    result = call("run", spec_file, "--dry-run", "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "VLLM_CPU_OMP_THREADS_BIND=1" in result.output
    assert "--policy=ibs" in result.output
    assert "--max-lora-rank=8" in result.output
    assert "dedicated-1+1__half__c4__r0\n  orthrus__half__c4__r0" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--percentile-metrics", "ttft,xyz"], "xyz unknown; allowed: ttft, tpot, itl, e2el"),
        (["--metric-percentiles", "50,101"], "each must be within 0 to 100"),
        (["--metric-percentiles", "high"], "must be numbers"),
        (["--goodput", "ttft"], "must be KEY:MILLISECONDS"),
        (["--request-rate", "3"], "no open load"),
    ],
)
def test_wrong_flags_end_with_status_2_and_a_reason(spec_file, arguments, message):
    result = call("run", spec_file, "--dry-run", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_wrong_spec_ends_with_status_2_and_the_field(tmp_path):
    path = tmp_path / "SPEC.yaml"
    path.write_text(SPEC + "repetitons: 3\n")
    result = call("run", path)
    assert result.exit_code == 2
    assert "repetitons: unknown key" in result.stderr


def test_validate_prints_the_spec_with_defaults(spec_file):
    result = call("validate", spec_file)
    assert json.loads(result.stdout)["server"]["dtype"] == "bfloat16"


def test_quick_drives_running_servers_and_saves_on_request(fake_url, tmp_path):
    arguments = [
        "quick",
        "--base-url",
        fake_url,
        "--model",
        "fake",
        "--num-prompts",
        "10",
        "--output-len",
        "3",
    ]
    shown = call(*arguments)
    assert shown.exit_code == 0, shown.output
    assert "gen ttft p99 ms" in shown.output
    saved = call(*arguments, "--save-result", "--result-dir", tmp_path / "kept", "--request-rate", "50")
    assert saved.exit_code == 0, saved.output
    (cell,) = json.loads((tmp_path / "kept" / "summary.json").read_text())["cells"]
    assert cell["load"] == "r50-c16"
    assert cell["figures"]["embed_requests"]["median"] == 5


def test_quick_reports_servers_that_are_not_there():
    result = call("quick", "--base-url", "http://127.0.0.1:9", "--model", "fake")
    assert result.exit_code == 1
    assert "a warm-up" in result.output


def test_quick_takes_a_body_for_other_servers(fake_url):
    arguments = [
        "quick",
        "--base-url",
        fake_url,
        "--model",
        "fake",
        "--num-prompts",
        "2",
        "--embed-share",
        "0",
    ]
    assert call(*arguments, "--extra-body", '{"n_probs": 3}').exit_code == 0
    sent = httpx.get(f"{fake_url}/seen", trust_env=False).json()[-1]
    assert sent["n_probs"] == 3
    assert "ignore_eos" not in sent
    wrong = call(*arguments, "--extra-body", "[1]")
    assert wrong.exit_code == 2
    assert "must be a JSON object" in wrong.stderr
