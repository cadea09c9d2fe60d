"""What the demo's measurements say, in words that do not promise more than was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from orthrus.demo.metrics import Counters

ABOUT_EQUAL = 0.05
UNSTEADY = 0.10


@dataclass(frozen=True)
class Phase:
    """A finished phase: what the server's counters grew by, and the chats' timings in seconds.

    `gaps` are times between two pieces of a stream, `first_tokens` times from a request to its first piece.
    """

    counters: Counters
    passages: int
    gaps: tuple[float, ...]
    first_tokens: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Wall time."""
        return self.counters.time


def milliseconds(values: tuple[float, ...], average: Callable[[tuple[float, ...]], float]) -> str:
    """Their average, to the millisecond; "not measured" without values."""
    return f"{average(values) * 1000:.0f} ms" if values else "not measured"


def phase_line(name: str, phase: Phase) -> str:
    """A finished phase in one line."""
    tokens = phase.counters.tokens
    parts = [f"{name}: {phase.seconds:.1f} s"]
    if phase.passages:
        parts.append(f"{phase.passages} passages, {phase.counters.rate('embed'):.0f} embedding tokens/s")
    if tokens["decode"]:
        parts.append(f"{phase.counters.rate('decode'):.0f} generated tokens/s")
    return ", ".join(parts)


def verdict(together: float, apart: float) -> str:
    """One sentence that compares the two times."""
    ratio = apart / together
    if abs(ratio - 1) <= ABOUT_EQUAL:
        return "Together took about as long: mixing cost nothing and saved nothing here."
    if ratio > 1:
        return f"Together was {ratio:.2f} times as fast."
    return f"Together was slower: it took {1 / ratio:.2f} times as long."


def steadiness(before: float, after: float) -> str:
    """What the two speeds measured alone say about the machine, in a sentence."""
    if abs(before - after) <= UNSTEADY * max(before, after):
        return "The two agree within 10%."
    return "The two differ by more than 10%: the machine was not steady, so take the comparison with care."


def summary(before: Phase, chat: Phase, both: Phase, after: Phase, chats: int) -> list[str]:
    """The closing lines, from the phases: embeddings alone, chats alone, both together, embeddings again."""
    tokens, steps = both.counters.tokens, both.counters.steps
    rates = before.counters.rate("embed"), after.counters.rate("embed")
    alone = before.counters.tokens["embed"] + after.counters.tokens["embed"]
    embed_rate, chat_rate = alone / (before.seconds + after.seconds), chat.counters.rate("decode")
    if embed_rate and chat_rate:
        embed_alone, chat_alone = tokens["embed"] / embed_rate, tokens["decode"] / chat_rate
        apart = embed_alone + chat_alone
        comparison = (
            f"At those speeds the embeddings alone take {embed_alone:.1f} s and the chats alone"
            f" {chat_alone:.1f} s: {apart:.1f} s one after the other, {both.seconds:.1f} s together."
            f" {verdict(both.seconds, apart)}"
        )
    else:
        comparison = "One kind alone was too slow to measure, so there is no comparison with both together."
    return [
        f"Together: {both.passages} passages ({tokens['embed']:.0f} tokens) embedded and"
        f" {tokens['decode']:.0f} tokens generated for {chats} chats in {both.seconds:.1f} s.",
        f"Steps: {steps.get('mixed', 0):.0f} of {sum(steps.values()):.0f}"
        f" ({both.counters.mixed_share:.0%}) held both kinds.",
        f"Alone, measured on the same server: embeddings {rates[0]:.0f} tokens/s before and {rates[1]:.0f}"
        f" after ({before.passages} passages each), chats {chat_rate:.0f} tokens/s"
        f" (over {chat.seconds:.1f} s). {steadiness(*rates)}",
        comparison,
        f"A chat's first token came after {milliseconds(chat.first_tokens, median)} alone and"
        f" {milliseconds(both.first_tokens, median)} beside the embeddings (medians), each next one after"
        # Pieces that reach a busy client together would make the median of their gaps next to nothing.
        f" {milliseconds(chat.gaps, fmean)} alone and {milliseconds(both.gaps, fmean)} beside them (means).",
    ]
