import numpy as np
import pytest

from orthrus.bench.records import ClientRun, Record, read_run, write_run
from orthrus.bench.spec import Work
from orthrus.bench.summary import distribution, is_good, spread, summarise


def embed(due, end, tokens=100, **more):
    return Record(0, "embed", due, due, "s", first=end, end=end, tokens_in=tokens, **more)


def generation(due, tokens, prompt=10, **more):
    return Record(
        0,
        "generate",
        due,
        due,
        "s",
        first=tokens[0],
        tokens=tokens,
        end=tokens[-1],
        tokens_in=prompt,
        tokens_out=len(tokens),
        **more,
    )


def run(records, windows=((0.0, 10.0),)):
    return ClientRun(windows=list(windows), cpu_seconds=0.5, late_p99=0.001, records=records)


def test_rates_count_what_ended_within_the_window():
    figures = summarise(
        run(
            [
                embed(0, 4),
                embed(1, 10),
                embed(9, 11),  # after the window
                generation(0, [2.0, 3.0, 4.0]),
                generation(8, [9.0, 9.5, 10.5]),  # two tokens and the prefill are within
                embed(2, 3, error="HTTP 429"),
            ]
        )
    )
    assert figures["seconds"] == 10
    assert figures["embed_requests"] == 2
    assert figures["embed_errors"] == 1
    assert figures["embed_requests_per_s"] == pytest.approx(0.2)
    assert figures["embed_input_tokens_per_s"] == pytest.approx(20)
    assert figures["generate_requests_per_s"] == pytest.approx(0.1)
    assert figures["generate_output_tokens_per_s"] == pytest.approx(0.5)
    assert figures["requests_per_s"] == pytest.approx(0.3)
    assert figures["work_per_s"] == pytest.approx((200 + 20 + 5) / 10)


def test_work_is_weighted_by_kind_of_token():
    records = [embed(0, 4), generation(0, [2.0, 3.0])]
    weighted = summarise(run(records), work=Work(embed_token=1, prefill_token=2, decode_token=30))
    assert weighted["work_per_s"] == pytest.approx((100 + 2 * 10 + 30 * 2) / 10)


def test_latencies_count_from_due_and_include_what_ended_later():
    late = generation(0, [2.0, 3.0, 5.0])
    late.start = 1.5
    figures = summarise(run([late, generation(8, [12.0, 12.5])]), percentiles=(50.0,))
    assert figures["generate_ttft_p50_ms"] == pytest.approx(np.median([2000, 4000]))
    assert figures["generate_e2el_max_ms"] == pytest.approx(5000)
    assert figures["generate_itl_p50_ms"] == pytest.approx(np.median([1000, 2000, 500]))
    assert figures["generate_tpot_mean_ms"] == pytest.approx(np.mean([1500, 500]))


def test_percentiles_are_linear_between_samples():
    figures = distribution("x", [0.001, 0.002, 0.003, 0.004, 0.005], (50.0, 95.0, 99.0))
    assert figures == pytest.approx(
        {"x_mean_ms": 3, "x_max_ms": 5, "x_p50_ms": 3, "x_p95_ms": 4.8, "x_p99_ms": 4.96}
    )
    assert distribution("x", [], (50.0,)) == {}


@pytest.mark.parametrize(
    ("record", "good"),
    [
        (generation(0, [0.1, 0.15, 0.2]), True),
        (generation(0, [0.3, 0.31, 0.32]), False),  # ttft
        (generation(0, [0.1, 0.3]), False),  # tpot
        (generation(0, [0.2]), True),  # a single token has no tpot to miss
        (generation(0, [0.1, 0.15], error="x"), False),
        (embed(0, 0.5), True),
        (embed(0, 0.6), False),
    ],
)
def test_goodput_counts_requests_within_every_goal_of_their_kind(record, good):
    goals = {"ttft": 200, "tpot": 60, "embed_e2el": 500}
    assert is_good(record, goals) is good
    assert summarise(run([record]), goals)["goodput_requests_per_s"] == pytest.approx(0.1 * good)


def test_a_session_is_whole_when_all_its_rounds_are():
    one = [embed(0, 1, session=0), generation(1, [2.0, 4.0], session=0)]
    two = [embed(2, 3, session=1)]  # cut before its generation
    three = [embed(3, 4, session=2), generation(4, [5.0, 6.0], session=2, error="x")]
    figures = summarise(run([*one, *two, *three]), percentiles=(50.0,))
    assert figures["sessions_per_s"] == pytest.approx(0.1)
    assert figures["session_e2el_max_ms"] == pytest.approx(4000)


def test_phases_have_their_own_times():
    records = [embed(0, 2), embed(5, 6, phase=1), embed(5, 9, phase=1)]
    figures = summarise(run(records, [(0.0, 4.0), (5.0, 9.0)]))
    assert (figures["phase0_seconds"], figures["phase1_seconds"]) == (4, 4)
    assert figures["phase0_requests_per_s"] == pytest.approx(0.25)
    assert figures["phase1_requests_per_s"] == pytest.approx(0.5)
    assert figures["requests_per_s"] == pytest.approx(3 / 8)


def test_spread_over_repetitions():
    found = spread([{"a": 1.0, "b": 5.0}, {"a": 3.0}, {"a": 2.0}])
    assert found["a"] == {"median": 2, "min": 1, "max": 3, "n": 3}
    assert found["b"]["n"] == 1


def test_runs_are_read_as_written(tmp_path):
    before = run([embed(0, 1.5), generation(0, [0.25, 0.5], session=3)], [(0.0, 1.0), (2.0, 3.0)])
    write_run(tmp_path / "r.jsonl", before)
    assert read_run(tmp_path / "r.jsonl") == before
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"bad.jsonl holds no client run"):
        read_run(tmp_path / "bad.jsonl")


def test_a_window_that_ends_with_its_last_request_still_holds_it_in_the_file(tmp_path):
    end = 1.2345675000000001  # rounds up, beyond the unrounded end of the window
    write_run(tmp_path / "r.jsonl", run([embed(0, end)], [(0.0, end)]))
    assert summarise(read_run(tmp_path / "r.jsonl"))["embed_requests"] == 1
