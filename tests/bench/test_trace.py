import json

import pytest
from typer.testing import CliRunner

from orthrus.bench.trace import TraceError, read_trace, summarize
from orthrus.cli_trace import app


def step(number, embed, prefill, decode, left_embed, left_prefill, budget=100):
    mix = "mixed" if embed and prefill + decode else "embed" if embed else "generate"
    return {
        "step": number,
        "time": 10.0 + number,
        "mix": mix,
        "budget": budget,
        "tokens": {"embed": embed, "prefill": prefill, "decode": decode},
        "remaining": {"embed": left_embed, "prefill": left_prefill},
        "running": {"embed": 1, "generate": 2},
        "waiting": {"embed": 0, "generate": 1},
        "credits": {"credit_embed": 1.5, "credit_prefill": -1.5},
        "refused": {},
    }


STEPS = [
    step(0, 60, 20, 10, 600, 200),  # ideal share 0.75: 60 of 80
    step(1, 20, 60, 10, 300, 300),  # ideal 40: 20 too few
    step(2, 0, 0, 50, 0, 0),  # nothing but decodes
    step(3, 30, 0, 0, 30, 0),  # embeddings alone, nothing left
]


def test_summary_against_hand_computed_figures():
    summary = summarize(STEPS)
    assert summary.tokens == {"embed": 110, "prefill": 80, "decode": 70}
    assert summary.budget_fill == pytest.approx(0.9)  # the two steps that left work behind
    assert summary.mixed_steps == 0.5
    assert summary.contended_steps == 2
    assert summary.ideal_embed_share == pytest.approx(100 / 160)
    assert summary.embed_share == pytest.approx(80 / 160)
    assert summary.share_error == pytest.approx(20 / 160)
    assert summary.max_share_error_tokens == pytest.approx(20)
    assert summary.seconds == 3
    assert summary.notes == ()


def test_figures_over_no_steps_are_none_and_explained():
    summary = summarize([STEPS[2], STEPS[3]])  # neither left work waiting
    assert (summary.budget_fill, summary.share_error, summary.max_share_error_tokens) == (None, None, None)
    assert (summary.embed_share, summary.ideal_embed_share) == (None, None)
    assert [note.partition(":")[0] for note in summary.notes] == ["budget_fill", "shares"]
    summary = summarize([STEPS[0], STEPS[2]])
    assert summary.budget_fill == pytest.approx(0.9)
    assert summary.notes == ()


def test_the_longest_pause_lasts_until_the_step_that_ends_it():
    steps = [
        step(0, 50, 0, 0, 500, 40),
        step(1, 50, 0, 0, 450, 40),
        step(2, 50, 20, 0, 400, 40),  # prefills have waited for two seconds
        step(3, 50, 0, 0, 350, 20),
        step(4, 0, 20, 0, 300, 20),
        step(5, 0, 0, 9, 0, 0),  # the embeddings were aborted
        step(9, 0, 0, 9, 0, 0),  # nothing waits, so nothing pauses
        step(10, 0, 0, 9, 8, 0),
        step(12, 0, 0, 9, 8, 0),  # still waiting at the end
    ]
    assert summarize(steps).longest_pause_s == {"embed": 2, "prefill": 2}
    assert summarize(STEPS).longest_pause_s == {"embed": 0, "prefill": 0}


def test_a_step_in_which_a_kind_could_not_start_is_not_contended():
    shut_out = STEPS[1] | {"refused": {"prefill": "sequence_slots"}}
    summary = summarize([STEPS[0], shut_out])
    assert summary.contended_steps == 1
    assert summary.share_error == pytest.approx(0)
    assert summary.budget_fill == pytest.approx(0.9)


def test_the_ideal_share_is_the_one_that_the_policy_aimed_at():
    # --embed-bias 3 makes of the even queues of step 1 a share of 0.75, so 60 of its 80 tokens.
    biased = STEPS[1] | {"credits": {"embed_share": 0.75}}
    summary = summarize([STEPS[0], biased])
    assert summary.ideal_embed_share == pytest.approx(120 / 160)
    assert summary.share_error == pytest.approx(40 / 160)
    assert summary.max_share_error_tokens == pytest.approx(40)
    never = STEPS[1] | {"credits": {"embed_share": 0.0}}
    assert summarize([never]).ideal_embed_share == 0


def test_a_broken_line_is_named(tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text(json.dumps(STEPS[0]) + "\n{}\n")
    with pytest.raises(TraceError, match="line 2"):
        read_trace(trace, warn=pytest.fail)
    with pytest.raises(TraceError, match="no steps"):
        summarize([])


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_commands(tmp_path, suffix):
    trace, picture = tmp_path / "t.jsonl", tmp_path / f"p{suffix}"
    trace.write_text("\n".join(map(json.dumps, STEPS)))
    runner = CliRunner()
    printed = runner.invoke(app, ["summary", str(trace)])
    assert json.loads(printed.stdout)["contended_steps"] == 2
    trace.write_text(json.dumps(STEPS[2]) + "\n")
    document = json.loads(runner.invoke(app, ["summary", str(trace)]).stdout)
    assert document["budget_fill"] is None
    assert "no step left work waiting" in document["notes"][0]
    trace.write_text("\n".join(map(json.dumps, STEPS)))
    assert runner.invoke(app, ["plot", str(trace), "-o", str(picture)]).exit_code == 0
    assert picture.read_bytes()[:4] in (b"\x89PNG", b"<?xm")
    assert runner.invoke(app, ["plot", str(trace), "-o", str(tmp_path / "p.txt")]).exit_code == 2
