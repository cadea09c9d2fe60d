import csv
import json

import pytest
from rich.console import Console

from orthrus.bench import report
from orthrus.bench.cells import groups
from orthrus.bench.overrides import override, parse_goodput
from orthrus.bench.run import Bench
from orthrus.bench.session import perform
from orthrus.bench.spec import SpecError, parse_spec


def spec(*urls, **more):
    document = {
        "name": "fake",
        "model": "fake",
        "repetitions": 2,
        "num_warmups": 1,
        "workloads": [{"name": "mix", "sweep": {"embed_share": [0.25, 0.75]}, "embed": {"tokens": 8}}],
        "topologies": [{"topology": f"external:{url}", "label": f"s{i}"} for i, url in enumerate(urls)],
        "load": [{"type": "closed", "max_concurrency": 4, "num_prompts": 8}],
    }
    return parse_spec(document | more, "SPEC.yaml", None)


def test_repetitions_are_interleaved_over_the_topologies():
    order = [(rep, topology.name) for rep, topology, _ in groups(spec("http://a:1", "http://b:1"))]
    assert order == [(0, "s0"), (0, "s1"), (1, "s0"), (1, "s1")]


def test_cells_that_a_topology_cannot_serve_are_left_out():
    found = spec("http://a:1", topologies=["dedicated:1+0", "orthrus"], workloads=[{"name": "half"}])
    assert [[cell.topology.name for cell in cells] for _, _, cells in groups(found)] == [[], ["orthrus"]] * 2
    with pytest.raises(SpecError, match="no topology of the spec serves"):
        Bench(override(found).model_copy(update={"topologies": found.topologies[:1]}), None)


def test_a_run_writes_records_summary_report_and_plots(tmp_path, fake_url):
    found, failures = perform(spec(fake_url, goodput={"ttft": 60_000}), tmp_path, Console(quiet=True))
    assert failures == []
    assert [key[:2] for key in found.rows] == [("s0", "mix-0.25"), ("s0", "mix-0.75")]
    low, high = found.rows.values()
    assert (low["embed_requests"]["median"], high["embed_requests"]["median"]) == (2, 6)
    assert low["requests_per_s"]["n"] == 2
    assert low["goodput_requests_per_s"]["median"] > 0
    records = sorted(path.name for path in (tmp_path / "raw").glob("*.jsonl"))
    assert records[0] == "s0__mix-0.25__c4__r0.jsonl"
    assert len(records) == 4
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["machine"]["python"]
    assert len(summary["cells"]) == 2
    with (tmp_path / "summary.csv").open() as file:
        rows = {(row["workload"], row["figure"]): row for row in csv.DictReader(file)}
    assert float(rows["mix-0.75", "embed_requests"]["median"]) == 6
    text = (tmp_path / "report.md").read_text()
    assert "| mix-0.75 | s0 |" in text
    for plot in ("throughput-c4", "latency-c4"):
        assert f"![{plot}]({plot}.png)" in text
        assert (tmp_path / f"{plot}.png").read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in (tmp_path / f"{plot}.svg").read_text()


def test_windows_without_time_for_two_requests_of_a_client_are_named(tmp_path, fake_url):
    def cell(embed, generate):
        figures = {"embed_e2el_mean_ms": embed, "generate_e2el_mean_ms": generate}
        return {name: {"median": mean} for name, mean in figures.items() if mean}

    load = [
        {"type": "closed", "max_concurrency": 4, "seconds": 8},
        {"type": "closed", "max_concurrency": 8, "num_prompts": 8},
        {"type": "open", "request_rate": 1, "seconds": 8},
    ]
    rows = {
        ("s0", "mix", "c4"): cell(4000, 3000),
        ("s1", "mix", "c4"): cell(100, 4001),
        ("s2", "mix", "c4"): cell(17_000, None),
        ("s0", "mix", "c8"): cell(9000, 9000),
        ("s0", "mix", "rate1"): cell(9000, 9000),
        ("s3", "mix", "c4"): {},
    }
    found = report.short_windows(spec(fake_url, load=load), report.Table(rows))
    assert [sentence.partition(":")[0] for sentence in found] == ["mix, s1, load c4", "mix, s2, load c4"]
    assert found[1].endswith("(17 s each): chance decides its rates, take --seconds 170")
    short = spec(fake_url, load=[{"type": "closed", "max_concurrency": 4, "seconds": 0.01}])
    perform(short, tmp_path, Console(quiet=True))
    text = (tmp_path / "report.md").read_text()
    assert "## Windows that are too short\n\n- mix-0.25, s0, load c4: 0.01 s are less than" in text


def test_resuming_keeps_finished_cells_and_measures_changed_ones(tmp_path, fake_url):
    first = Bench(spec(fake_url), tmp_path)
    assert first.run(resume=False).measured == 4
    with pytest.raises(SpecError, match="holds results; continue them with --resume"):
        Bench(spec(fake_url), tmp_path).run(resume=False)
    again = Bench(spec(fake_url, repetitions=3), tmp_path).run(resume=True)
    assert (again.measured, again.kept) == (2, 4)
    changed = Bench(spec(fake_url, num_warmups=2), tmp_path).run(resume=True)
    assert (changed.measured, changed.kept) == (4, 0)


def test_other_goals_need_no_new_run(tmp_path, fake_url):
    Bench(spec(fake_url), tmp_path).run(resume=False)
    strict = Bench(spec(fake_url, goodput={"e2el": 0.001, "embed_e2el": 0.001}), tmp_path)
    assert strict.run(resume=True).measured == 0
    cells = next(iter(strict.results().values()))
    assert cells[0]["figures"]["goodput_requests_per_s"] == 0


def test_a_topology_that_fails_does_not_stop_the_others(tmp_path, fake_url):
    outcome = Bench(spec("http://127.0.0.1:9", fake_url), tmp_path).run(resume=False)
    assert outcome.measured == 4
    assert len(outcome.failures) == 2
    assert outcome.failures[0].startswith("s0, repetition 0: a warm-up ")


def test_both_repetitions_send_other_prompts_but_each_topology_the_same():
    found = spec("http://a:1", "http://b:1")
    seeds = [[cell.seed(found) for cell in cells] for _, _, cells in groups(found)]
    assert seeds == [[0, 0], [0, 0], [1, 1], [1, 1]]


def test_overrides_change_every_load_they_fit():
    loads = [
        {"type": "closed", "max_concurrency": 4, "num_prompts": 8},
        {"type": "closed", "max_concurrency": 8, "num_prompts": 8},
        {"type": "open", "request_rate": 1, "seconds": 30},
    ]
    found = override(
        spec("http://a:1", load=loads),
        seconds=5,
        max_concurrency=2,
        request_rate=9,
        burstiness=0.5,
        repetitions=1,
        seed=7,
        dtype="float32",
    )
    closed, opened = found.load  # the two closed loads have become one
    assert (closed.max_concurrency, closed.seconds, closed.num_prompts) == (2, 5, None)
    assert (opened.request_rate, opened.burstiness, opened.seconds) == (9, 0.5, 5)
    assert (found.repetitions, found.seed, found.server.dtype) == (1, 7, "float32")
    assert [workload.name for workload in found.expanded()] == ["mix-0.25", "mix-0.75"]


def test_only_the_topologies_that_were_asked_for_are_kept():
    found = override(spec("http://a:1", "http://b:1", "http://c:1"), topologies=["s2", "s0"])
    assert [topology.name for topology in found.topologies] == ["s0", "s2"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": 1, "num_prompts": 1}, "give one"),
        ({"request_rate": 1.0}, "the spec has no open load"),
        ({"repetitions": 0}, "greater than or equal to 1|greater than 0"),
        ({"goodput": {"x": 1.0}}, "x: 1 is not allowed"),
        ({"topologies": ["vllm"]}, "--topology vllm: the spec has "),
    ],
)
def test_overrides_that_cannot_be(changes, message):
    with pytest.raises(SpecError, match=message):
        override(spec("http://a:1"), **changes)


def test_goodput_pairs():
    assert parse_goodput(["ttft:200", "embed_e2el:1e3"]) == {"ttft": 200, "embed_e2el": 1000}
    with pytest.raises(SpecError, match=r"--goodput ttft=200: must be KEY:MILLISECONDS"):
        parse_goodput(["ttft=200"])


def test_cells_of_the_report_show_median_and_range():
    assert report.cell({"median": 2.0, "min": 1.234, "max": 345.6}) == "2 (1.23–346)"
    assert report.cell({"median": 2.0, "min": 2.0, "max": 2.0}) == "2"
    assert report.cell(None) == ""
