"""What `orthrus trace` makes of files that are no trace, or only the beginning of one."""

import json

import pytest
from typer.testing import CliRunner

from orthrus.bench.trace import TraceError, read_trace
from orthrus.cli_trace import app

STEP = {
    "step": 1,
    "time": 11.0,
    "mix": "mixed",
    "budget": 100,
    "tokens": {"embed": 60, "prefill": 20, "decode": 10},
    "remaining": {"embed": 600, "prefill": 200},
    "running": {"embed": 1, "generate": 2},
    "waiting": {"embed": 0, "generate": 1},
    "credits": {"credit_embed": 1.5, "credit_prefill": -1.5, "embed_share": 0.75},
    "refused": {},
}
LINE = json.dumps(STEP).encode() + b"\n"
CUT = LINE[:120]


def changed(path, value):
    """STEP as a line with the field at `path` set to `value`, or taken out where that is None."""
    step = json.loads(LINE)
    *parents, name = path.split(".")
    place = step
    for parent in parents:
        place = place[parent]
    if value is None:
        del place[name]
    else:
        place[name] = value
    return json.dumps(step).encode() + b"\n"


# Per line: what the message must say after "line 2: not a step".
BROKEN = {
    "binary": (b"\x89PNG\xff\xfe\n", "not JSON"),
    "binary in a string": (LINE.replace(b"mixed", b"\xff\xfe"), "not JSON"),
    "empty": (b"\n", "not JSON"),
    "cut": (CUT + b"\n", "not JSON"),
    "nested too deep": (b"[" * 100_000 + b"\n", "not JSON"),
    "a list": (b"[]\n", "object"),
    "other fields": (b"{}\n", "time: "),
    **{
        f"without {path}": (changed(path, None), f"{path}: ")
        for path in [
            "time",
            "mix",
            "budget",
            "tokens",
            "remaining",
            "running",
            "waiting",
            "credits",
            "refused",
            "tokens.embed",
            "tokens.prefill",
            "tokens.decode",
            "remaining.embed",
            "remaining.prefill",
            "running.embed",
            "waiting.generate",
        ]
    },
    **{
        f"{path} {value!r:.12}": (changed(path, value), f"{path}: ")
        for path, value in (
            ("time", "now"),
            ("time", float("nan")),
            ("time", float("inf")),
            ("mix", "both"),
            ("budget", 0),
            ("budget", True),
            ("tokens", 7),
            ("tokens.decode", -1),
            ("tokens.embed", "60"),
            ("tokens.embed", 10**400),
            ("remaining.prefill", "many"),
            ("waiting.embed", -1),
            ("running.generate", []),
            ("credits.credit_embed", "much"),
            ("credits.credit_embed", 1e308),
            ("credits.embed_share", 1.5),
            ("refused", 1),
        )
    },
}


@pytest.fixture
def trace(tmp_path):
    return tmp_path / "t.jsonl"


def call(command, trace):
    picture = ["-o", str(trace.with_suffix(".png"))] if command == "plot" else []
    return CliRunner().invoke(app, [command, str(trace), *picture])


@pytest.mark.parametrize(("line", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_line_that_is_no_step_is_named_with_its_reason(trace, line, reason):
    trace.write_bytes(LINE + line + LINE)
    with pytest.raises(TraceError) as caught:
        read_trace(trace, warn=pytest.fail)
    message = str(caught.value)
    assert message.startswith("t.jsonl, line 2: not a step (")
    assert reason in message
    assert "\n" not in message
    printed = call("summary", trace)
    assert printed.exit_code == 2
    assert isinstance(printed.exception, SystemExit)
    assert "t.jsonl, line 2: not a step" in printed.stderr


@pytest.mark.parametrize("command", ["summary", "plot"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00\xff\xfe", "t.jsonl, line 1: not a step (not JSON)"),
        (CUT, "t.jsonl, line 1: not a step (not JSON)"),
        (CUT + b"\n" + LINE, "t.jsonl, line 1: not a step (not JSON)"),
        (changed("budget", 0), "t.jsonl, line 1: not a step (budget: "),
        (LINE + b"{}", "t.jsonl, line 2: not a step (time: "),
        (b"", "t.jsonl: the trace has no steps"),
    ],
    ids=["binary", "one cut line", "cut first line", "no budget", "whole last line", "empty"],
)
def test_the_commands_refuse_what_is_no_trace(trace, command, content, message):
    trace.write_bytes(content)
    printed = call(command, trace)
    assert printed.exit_code == 2
    assert isinstance(printed.exception, SystemExit)
    assert message in printed.stderr
    assert not printed.stdout


@pytest.mark.parametrize("command", ["summary", "plot"])
def test_an_incomplete_last_line_is_left_out_and_reported(trace, command):
    trace.write_bytes(LINE + LINE + CUT)
    printed = call(command, trace)
    assert printed.exit_code == 0
    assert printed.stderr == "t.jsonl, line 3: incomplete, left out\n"
    if command == "summary":
        assert json.loads(printed.stdout)["steps"] == 2


def test_a_line_may_be_cut_anywhere(trace):
    for length in range(1, len(LINE) - 1):
        trace.write_bytes(LINE + LINE[:length])
        said = []
        assert len(read_trace(trace, said.append)) == 1
        assert said == ["t.jsonl, line 2: incomplete, left out"]
    trace.write_bytes(LINE + LINE[:-1])  # nothing but the newline is missing
    assert len(read_trace(trace, warn=pytest.fail)) == 2


def test_unknown_fields_and_other_policies_credits_are_allowed(trace):
    other = changed("credits", {"next_embed": 1.0, "tokens_embed": 60.0})
    trace.write_bytes(other + changed("tokens.draft", "few") + changed("host", {"name": "a"}))
    assert len(read_trace(trace, warn=pytest.fail)) == 3
    assert call("summary", trace).exit_code == 0
    assert call("plot", trace).exit_code == 0


def test_the_largest_numbers_can_be_summed_and_drawn(trace):
    largest = changed("time", 2**53), changed("tokens.embed", 2**53), changed("credits.credit_embed", 2**53)
    trace.write_bytes(LINE + b"".join(largest))
    assert call("summary", trace).exit_code == 0
    assert call("plot", trace).exit_code == 0
