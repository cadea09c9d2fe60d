"""The demo's parts that compute: trace, counters, questions, bars and the closing words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orthrus.demo.metrics import Counters, MissingCountersError
from orthrus.demo.questions import QUESTIONS, SHOWN
from orthrus.demo.report import Phase, steadiness, summary, verdict
from orthrus.demo.state import DemoState
from orthrus.demo.trace import Step, TraceReader
from orthrus.demo.view import bar, plain_line
from orthrus.retrieval.passages import load_passages


def line(step: int, embed: int = 0, decode: int = 0) -> str:
    return json.dumps(
        {
            "step": step,
            "time": 1.5,
            "budget": 100,
            "tokens": {"embed": embed, "prefill": 0, "decode": decode},
            "remaining": {"embed": 7, "prefill": 0},
            "running": {"embed": 1, "generate": 2},
            "waiting": {"embed": 3, "generate": 0},
            "credits": {},
        }
    )


def test_a_trace_is_read_line_by_line_and_a_half_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    reader = TraceReader(path)
    assert reader.read() == []
    path.write_text(line(1, embed=5) + "\n" + line(2)[:20])
    assert [step.number for step in reader.read()] == [1]
    assert reader.read() == []
    with path.open("a") as file:
        file.write(line(2)[20:] + "\n" + line(3, decode=4) + "\n")
    steps = reader.read()
    assert [(step.number, step.total) for step in steps] == [(2, 0), (3, 4)]
    assert steps[0].waiting == {"embed": 3, "generate": 0}


METRICS = """
# TYPE orthrus:scheduled_tokens counter
orthrus:scheduled_tokens_total{kind="embed"} 100.0
orthrus:scheduled_tokens_total{kind="embed",engine="1"} 20.0
orthrus:scheduled_tokens_total{kind="decode"} 30.0
# TYPE orthrus:steps counter
orthrus:steps_total{mix="mixed"} 3.0
orthrus:steps_total{mix="embed"} 1.0
"""


def test_counters_are_summed_and_subtracted() -> None:
    first = Counters.parse(METRICS, 10.0)
    assert first.tokens == {"embed": 120, "decode": 30}
    assert first.mixed_share == 0.75
    later = Counters(14.0, {"embed": 200, "decode": 30, "prefill": 8}, {"mixed": 3, "embed": 5})
    difference = later.since(first)
    assert difference.tokens == {"embed": 80, "decode": 0, "prefill": 8}
    assert difference.steps == {"mixed": 0, "embed": 4}
    assert (difference.rate("embed"), difference.rate("prefill"), difference.rate("none")) == (20, 2, 0)
    assert difference.mixed_share == 0


def test_metrics_without_the_counters_are_refused() -> None:
    with pytest.raises(MissingCountersError, match="orthrus:scheduled_tokens_total"):
        Counters.parse("vllm:num_requests_running 1.0\n", 0.0)


def test_rates_look_at_the_last_seconds_only() -> None:
    state = DemoState()
    assert state.rate("embed") == 0
    for second in range(11):
        # 100 tokens/s for five seconds, then 10.
        total = 100 * second if second <= 5 else 500 + 10 * (second - 5)
        state.add_reading(Counters(float(second), {"embed": total}, {}))
    assert state.rate("embed") == 10


@pytest.mark.parametrize(
    ("embed", "decode", "expected"),
    [
        (100, 0, "█" * 10),
        (50, 0, "█" * 5 + "·" * 5),
        (0, 1, "█" + "·" * 9),
        (99, 1, "█" * 10),
        (0, 0, "·" * 10),
    ],
)
def test_a_bar_is_as_wide_as_the_budget_and_shows_the_smallest_share(
    embed: int, decode: int, expected: str
) -> None:
    assert bar(Step.parse(line(1, embed, decode)), 10).plain == expected


def test_a_plain_line_names_the_step_and_the_queues() -> None:
    state = DemoState()
    state.begin("3/4 both together", to_embed=10, chats=1)
    state.embedded = 4
    state.steps.append(Step.parse(line(9, embed=40, decode=2)))
    text = plain_line(state)
    assert "4/10 passages | step 9: embed 40 prefill 0 decode 2" in text
    assert "running 1 embed 2 generate | waiting 3 embed 0 generate" in text


def test_the_summary_adds_the_times_measured_alone() -> None:
    embed = Phase(Counters(4.0, {"embed": 2000, "decode": 0}, {"embed": 8}), 64, (), ())
    chat = Phase(
        Counters(10.0, {"embed": 0, "decode": 400}, {"generate": 100}), 0, (0.001, 0.001, 0.088), (0.1,)
    )
    both = Phase(
        Counters(30.0, {"embed": 10000, "decode": 600}, {"mixed": 90, "generate": 10}),
        352,
        (0.3, 0.4),
        (0.6,),
    )
    again = Phase(Counters(6.0, {"embed": 2000, "decode": 0}, {"embed": 8}), 64, (), ())
    text = "\n".join(summary(embed, chat, both, again, 4))
    # 4000 tokens in 10 s are 400/s, so 10 000 take 25 s; 600 at 40/s are 15 s.
    assert (
        "embeddings alone take 25.0 s and the chats alone 15.0 s: 40.0 s one after the other, 30.0 s" in text
    )
    assert "500 tokens/s before and 333 after" in text
    assert "with care" in text
    assert "90 of 100 (90%) held both kinds" in text
    assert "1.33 times as fast" in text
    assert "after 100 ms alone and 600 ms beside" in text
    assert "after 30 ms alone and 350 ms beside" in text


def test_a_kind_too_slow_to_measure_is_said_and_not_divided_by() -> None:
    embed = Phase(Counters(4.0, {"embed": 2000, "decode": 0}, {"embed": 8}), 64, (), ())
    chat = Phase(Counters(1.0, {"embed": 0, "decode": 0}, {}), 0, (), ())
    both = Phase(Counters(30.0, {"embed": 10000, "decode": 600}, {"mixed": 90}), 352, (0.3,), (0.6,))
    assert "too slow to measure" in "\n".join(summary(embed, chat, both, embed, 4))


def test_two_close_speeds_are_called_steady() -> None:
    assert steadiness(500, 460) == "The two agree within 10%."
    assert "with care" in steadiness(440, 500)


@pytest.mark.parametrize(
    ("together", "apart", "words"),
    [
        (10, 10.4, "about as long"),
        (10, 9.6, "about as long"),
        (10, 20, "2.00 times as fast"),
        (20, 10, "slower: it took 2.00"),
    ],
)
def test_the_verdict_does_not_flatter(together: float, apart: float, words: str) -> None:
    assert words in verdict(together, apart)


def test_every_question_has_its_passage_and_the_shown_ones_are_among_them() -> None:
    ids = {passage.id for passage in load_passages()}
    assert {question.passage_id for question in QUESTIONS} <= ids
    assert len({question.passage_id for question in QUESTIONS}) == len(QUESTIONS) == 25
    assert set(SHOWN) <= set(QUESTIONS)
    assert len(SHOWN) == 3
