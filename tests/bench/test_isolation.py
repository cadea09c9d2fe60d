import pytest

from orthrus.bench import isolation
from orthrus.bench.records import ClientRun, Record
from orthrus.bench.spec import SpecError, parse_spec


def embed(start, end, error=""):
    return Record(0, "embed", start, start, "u", first=end, end=end, error=error)


def stream(*tokens):
    return Record(0, "generate", 0.0, 0.0, "u", first=tokens[0], tokens=list(tokens), end=tokens[-1])


def run(*records):
    return ClientRun([(0.0, 9.0)], 0.0, 0.0, list(records))


def test_gaps_are_told_apart_by_an_open_embedding():
    streams = [stream(1.0, 1.1, 1.2, 1.5, 1.9, 2.0), stream(1.1, 1.3)]
    quiet, beside = isolation.gaps(streams, [embed(1.25, 1.6)])
    # Gaps that begin before the last stream's first token (1.1) are left out.
    assert quiet == pytest.approx([0.1, 0.1])
    assert beside == pytest.approx([0.3, 0.4, 0.2])


def test_figures_of_the_four_workloads():
    assert isolation.figures("one-embedding-alone", run(embed(1, 1.5), embed(2, 2.7), embed(3, 9, "x"))) == {
        "embed_alone_ms": pytest.approx(600)
    }
    found = isolation.figures(
        "one-embedding-beside-streams", run(embed(2.1, 2.4), stream(1.0, 2.0, 2.5, 2.8, 3.0))
    )
    assert found == {
        "embed_beside_ms": pytest.approx(300),
        "itl_quiet_ms": pytest.approx(1500 / 3),
        "itl_beside_ms": pytest.approx(500),
        "itl_beside_max_ms": pytest.approx(500),
    }
    assert isolation.figures("one-chat-alone", run(stream(0.5, 1))) == {"ttft_alone_ms": 500}
    behind = isolation.figures("one-chat-behind-embeddings", run(embed(0, 5), stream(3, 4)))
    assert behind == {"ttft_behind_ms": 3000}


def test_rows_and_table_take_medians_over_repetitions():
    runs = {
        ("a", "one-chat-alone", "trace"): [run(stream(t, 9.0)) for t in (1.0, 3.0, 2.0)],
        ("a", "one-embedding-alone", "trace"): [run(embed(0, 1))],
        ("b", "one-embedding-alone", "trace"): [run(embed(0, 1, "refused"))],
    }
    found = isolation.rows(runs)
    assert found["a"]["ttft_alone_ms"] == {"median": 2000, "min": 1000, "max": 3000, "n": 3}
    head, _, first, second = isolation.markdown(found)
    assert head.count("|") == first.count("|") == len(isolation.COLUMNS) + 2
    assert first.startswith("| a | 1000 |")
    assert "2000 (1000–3000)" in first
    assert set(second) <= set("| b")


def test_a_spec_without_the_four_workloads_is_refused(tmp_path):
    spec = parse_spec(
        {
            "name": "x",
            "model": "m",
            "workloads": [{"name": "one-chat-alone", "embed_share": 0}],
            "topologies": ["orthrus"],
            "load": [{"type": "closed", "max_concurrency": 1, "num_prompts": 1}],
        },
        "spec",
        tmp_path,
    )
    with pytest.raises(
        SpecError, match="one-chat-behind-embeddings, one-embedding-alone, one-embedding-beside"
    ):
        isolation.check(spec)
