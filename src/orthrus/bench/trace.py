"""What a step trace (`orthrus serve --trace-steps FILE`) says about a run: fill, mix and share error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic refuses typing's before Python 3.12

Step = Mapping[str, Any]

# The upper bounds keep every sum and difference a finite float.
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Seconds = Annotated[float, Field(ge=0, le=2**53)]
_Credit = Annotated[float, Field(ge=-(2**53), le=2**53)]


class _Tokens(TypedDict):
    embed: _Count
    prefill: _Count
    decode: _Count


class _Remaining(TypedDict):
    embed: _Count
    prefill: _Count


class _Requests(TypedDict):
    embed: _Count
    generate: _Count


class _Credits(TypedDict):
    credit_embed: NotRequired[_Credit]
    credit_prefill: NotRequired[_Credit]
    embed_share: NotRequired[Annotated[float, Field(ge=0, le=1)]]


class _Line(TypedDict):
    """What the figures and the picture need of a line; its other fields are dropped."""

    time: _Seconds
    mix: Literal["embed", "generate", "mixed"]
    budget: Annotated[_Count, Field(ge=1)]
    tokens: _Tokens
    remaining: _Remaining
    running: _Requests
    waiting: _Requests
    credits: _Credits
    refused: dict[str, str]
    discarded: NotRequired[_Count]


_LINE = TypeAdapter(_Line)
_NOT_JSON = "not JSON"


class TraceError(ValueError):
    """A file that is not a step trace; the message names the line."""


@dataclass(frozen=True)
class TraceSummary:
    """Figures of one trace.

    `budget_fill` is the mean share of the token budget used, over steps that left work waiting;
    `mixed_steps` the share of steps with embeddings and generation. `share_error` and
    `max_share_error_tokens` compare embeddings with their ideal share of the tokens that were given out
    while both kinds had work that could start (paper, section 4.2): the relative difference of the totals,
    and the largest difference at any moment in tokens. `longest_pause_s` is, for each kind, the longest time
    for which it had prompt tokens to compute and was given none. `discarded_tokens` are those of
    steps discarded for a generation, which are in no other figure. A figure over no steps at all is None, and
    `notes` say why.

    The ideal share of a step is the one that its policy aimed at, `credits.embed_share`: only that one knows
    of --embed-bias and --count-decode. Policies that write none are held to the paper's, embeddings' part of
    the remaining prompt tokens. Either way it is taken of the prompt tokens given out: a trace does not say
    whether decodes were charged, so with --count-decode the ideal is too low by that share of the decodes.
    """

    steps: int
    seconds: float
    tokens: dict[str, int]
    discarded_tokens: int
    budget_fill: float | None
    mixed_steps: float
    contended_steps: int
    embed_share: float | None
    ideal_embed_share: float | None
    share_error: float | None
    max_share_error_tokens: float | None
    longest_pause_s: dict[str, float]
    notes: tuple[str, ...] = ()


def read_trace(path: Path, warn: Callable[[str], None]) -> list[Step]:
    """The steps of a trace file. Raises TraceError for a line that is not a step.

    A last line that was cut short, by a server that crashed or still writes, is left out: `warn` is told.
    """
    steps: list[Step] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                steps.append(_LINE.validate_json(line, strict=True))
            except ValidationError as error:
                reason = _reason(error)
                # Only a line after steps can be the cut end of a trace: a file of one such line is none.
                if reason == _NOT_JSON and steps and not line.endswith(b"\n"):
                    warn(f"{path.name}, line {number}: incomplete, left out")
                    break
                raise TraceError(f"{path.name}, line {number}: not a step ({reason})") from error
    return steps


def _reason(error: ValidationError) -> str:
    """The first thing wrong with a line, behind the field that it is wrong with."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return _NOT_JSON
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def is_contended(step: Step) -> bool:
    """Whether both kinds had prompt tokens to compute, more than the step could give, and could take them.

    Where the head of a kind could not start (no slot, no blocks), the other one's tokens were nobody else's.
    """
    if step["refused"]:
        return False
    remaining = step["remaining"]
    given = step["tokens"]["embed"] + step["tokens"]["prefill"]
    return bool(min(remaining["embed"], remaining["prefill"]) > 0 and sum(remaining.values()) > given > 0)


def summarize(steps: Sequence[Step]) -> TraceSummary:
    """The figures of a trace. Raises TraceError where it has no steps."""
    if not steps:
        raise TraceError("the trace has no steps")
    tokens = {kind: sum(step["tokens"][kind] for step in steps) for kind in ("embed", "prefill", "decode")}
    backlogged = [step for step in steps if _left_work(step)]
    contended = [step for step in steps if is_contended(step)]
    embed, ideal, given, worst = _shares(contended)
    notes = []
    if not backlogged:
        notes.append("budget_fill: no step left work waiting, so no step had reason to be full")
    if not contended:
        notes.append("shares: in no step both kinds had more prompt tokens to start than it could give")
    return TraceSummary(
        steps=len(steps),
        seconds=steps[-1]["time"] - steps[0]["time"],
        tokens=tokens,
        discarded_tokens=sum(step.get("discarded", 0) for step in steps),
        budget_fill=_mean(sum(step["tokens"].values()) / step["budget"] for step in backlogged),
        mixed_steps=sum(step["mix"] == "mixed" for step in steps) / len(steps),
        contended_steps=len(contended),
        embed_share=embed / given if contended else None,
        ideal_embed_share=ideal / given if contended else None,
        share_error=abs(embed - ideal) / given if contended else None,
        max_share_error_tokens=worst if contended else None,
        longest_pause_s={kind: _longest_pause(steps, kind) for kind in ("embed", "prefill")},
        notes=tuple(notes),
    )


def _left_work(step: Step) -> bool:
    given = step["tokens"]["embed"] + step["tokens"]["prefill"]
    return bool(sum(step["remaining"].values()) > given)


def _shares(contended: Iterable[Step]) -> tuple[float, float, float, float]:
    """Embedding tokens given, ideally given, all prompt tokens given, and the largest gap on the way."""
    embed = ideal = given = worst = 0.0
    for step in contended:
        step_given = step["tokens"]["embed"] + step["tokens"]["prefill"]
        remaining = step["remaining"]
        embed += step["tokens"]["embed"]
        given += step_given
        ratio = remaining["embed"] / (remaining["embed"] + remaining["prefill"])
        ideal += step_given * step["credits"].get("embed_share", ratio)
        worst = max(worst, abs(embed - ideal))
    return embed, ideal, given, worst


def _longest_pause(steps: Iterable[Step], kind: str) -> float:
    longest, since = 0.0, None
    for step in steps:
        if since is not None:
            longest = max(longest, step["time"] - since)
        if step["tokens"][kind] or not step["remaining"][kind]:
            since = None
        elif since is None:
            since = step["time"]
    return longest


def _mean(values: Iterable[float]) -> float | None:
    items = list(values)
    return sum(items) / len(items) if items else None
