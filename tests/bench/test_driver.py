import json
import subprocess
import sys
from itertools import pairwise

import pytest

from orthrus.bench.driver import Job
from orthrus.bench.records import read_run

MIX = {
    "type": "mix",
    "name": "m",
    "embed_share": 0.5,
    "embed": {"tokens": 8},
    "generate": {"output_tokens": 3},
}


def drive(tmp_path, url, load, workload=MIX, **more):
    job = {
        "workload": workload,
        "load": load,
        "seed": 1,
        "model": "fake",
        "tokenizer": "fake",
        "embed": [url],
        "generate": [url],
        "routing": "round-robin",
        "num_warmups": 2,
        "drain_seconds": 5,
        **more,
    }
    (tmp_path / "job.json").write_text(Job.model_validate(job).model_dump_json())
    command = [sys.executable, "-m", "orthrus.bench.driver", "job.json", "out.jsonl"]
    done = subprocess.run(command, input="go\n", cwd=tmp_path, capture_output=True, text=True, timeout=60)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    return (read_run(tmp_path / "out.jsonl") if done.returncode == 0 else None), messages


def test_a_counted_closed_loop_serves_the_mix_and_ends_with_the_last_answer(tmp_path, fake_url):
    run, messages = drive(tmp_path, fake_url, {"type": "closed", "max_concurrency": 3, "num_prompts": 20})
    assert messages[0] == {"ready": True}
    assert len(run.records) == 20
    assert all(record.ok for record in run.records)
    assert sum(record.kind == "embed" for record in run.records) == 10
    ((begin, end),) = run.windows
    assert end == pytest.approx(max(record.end for record in run.records), abs=1e-5)
    assert begin < 1
    assert run.cpu_seconds > 0
    open_at = [sum(r.start < other.start < r.end for r in run.records) for other in run.records]
    assert max(open_at) <= 2  # beside itself, with three clients


def test_a_timed_window_is_as_long_as_asked_and_drains(tmp_path, fake_url):
    run, _ = drive(tmp_path, fake_url, {"type": "closed", "max_concurrency": 2, "seconds": 0.5})
    ((begin, end),) = run.windows
    assert end - begin == pytest.approx(0.5)
    assert all(record.start < end for record in run.records)
    assert all(record.ok for record in run.records)


def test_clients_that_keep_to_one_kind(tmp_path, fake_url):
    load = {"type": "closed", "max_concurrency": 4, "num_prompts": 16, "split": "clients"}
    run, _ = drive(tmp_path, fake_url, load, {**MIX, "embed_share": 0.25})
    assert sum(record.kind == "embed" for record in run.records) == 4
    assert len(run.records) == 16


def test_an_open_loop_sends_on_time_whatever_is_open(tmp_path, fake_url):
    run, _ = drive(tmp_path, fake_url, {"type": "open", "request_rate": 40, "num_prompts": 20})
    assert len(run.records) == 20
    dues = sorted(record.due for record in run.records)
    assert dues[-1] - run.windows[0][0] == pytest.approx(0.5, abs=1e-3)
    assert all(record.start >= record.due for record in run.records)


def test_phases_follow_one_another(tmp_path, fake_url):
    workload = {"type": "phases", "name": "p", "embed_shares": [0, 1]}
    run, _ = drive(tmp_path, fake_url, {"type": "closed", "max_concurrency": 4, "num_prompts": 6}, workload)
    first, second = run.windows
    assert first[1] <= second[0]
    assert [r.kind for r in run.records] == ["generate"] * 6 + ["embed"] * 6
    assert min(r.start for r in run.records if r.phase == 1) >= first[1] - 1e-5


def test_sessions_alternate_within_a_client(tmp_path, fake_url):
    workload = {"type": "sessions", "name": "s", "rounds": 2, "search_seconds": 0.05}
    run, _ = drive(tmp_path, fake_url, {"type": "closed", "max_concurrency": 2, "num_prompts": 4}, workload)
    for session in range(4):
        records = sorted((r for r in run.records if r.session == session), key=lambda r: r.start)
        assert [record.kind for record in records] == ["embed", "generate"] * 2
        assert records[1].start >= records[0].end + 0.05
        assert all(a.end <= b.start for a, b in pairwise(records))


def test_a_trace_is_replayed_at_its_times(tmp_path, fake_url):
    (tmp_path / "t.jsonl").write_text(
        '{"at": 0.3, "kind": "embed", "tokens": 4}\n'
        '{"at": 0.1, "kind": "generate", "tokens": 4, "output_tokens": 2}\n'
    )
    workload = {"type": "trace", "name": "t", "path": str(tmp_path / "t.jsonl")}
    run, _ = drive(tmp_path, fake_url, {"type": "trace"}, workload)
    begin = run.windows[0][0]
    assert [(r.kind, round(r.due - begin, 3)) for r in run.records] == [("generate", 0.1), ("embed", 0.3)]


def test_a_failed_warm_up_stops_the_run(tmp_path):
    run, messages = drive(
        tmp_path, "http://127.0.0.1:9", {"type": "closed", "max_concurrency": 1, "num_prompts": 1}
    )
    assert run is None
    assert messages[-1]["failed"].startswith("a warm-up ")


def test_requests_longer_than_the_drain_are_cut_and_written_down(tmp_path, fake_url):
    long = {**MIX, "embed_share": 0, "generate": {"output_tokens": 3000}}
    load = {"type": "closed", "max_concurrency": 2, "seconds": 0.3}
    run, _ = drive(tmp_path, fake_url, load, long, drain_seconds=0.2, num_warmups=0)
    assert len(run.records) == 2
    assert all(record.error.startswith("cut") and record.tokens for record in run.records)
