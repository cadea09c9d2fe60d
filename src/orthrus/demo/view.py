"""How the demo looks: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orthrus.demo.state import DemoState
from orthrus.demo.trace import Step

COLOURS = {"embed": "cyan", "prefill": "yellow", "decode": "magenta"}
BAR = 36
ANSWER = 44
PLAIN_SECONDS = 5.0


def bar(step: Step, width: int = BAR) -> Text:
    """The step's tokens as a stacked bar; the full width is the budget. A kind that is there shows."""
    text = Text()
    left = width
    for kind, colour in COLOURS.items():
        tokens = step.tokens[kind]
        cells = min(left, max(1, round(tokens / step.budget * width))) if tokens else 0
        text.append("█" * cells, style=colour)
        left -= cells
    return text + Text("·" * left, style="dim")


def steps_table(state: DemoState) -> Table:
    """One row for each of the engine's last steps, the newest at the bottom."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("step", justify="right", style="dim")
    budget = state.steps[-1].budget if state.steps else 0
    table.add_column(f"tokens (full width: {budget})" if budget else "tokens", width=BAR, no_wrap=True)
    for kind, colour in COLOURS.items():
        table.add_column(kind, justify="right", style=colour, header_style=colour)
    for step in state.steps:
        table.add_row(str(step.number), bar(step), *(str(step.tokens[kind]) for kind in COLOURS))
    for _ in range((state.steps.maxlen or 0) - len(state.steps)):
        table.add_row("", "", "", "", "")
    return table


def counts_table(state: DemoState) -> Table:
    """Running and waiting requests of each kind at the last step, and tokens per second by kind."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("", "running", "waiting", "tokens/s"):
        table.add_column(heading, justify="right")
    step = state.steps[-1] if state.steps else None
    rows = (("embed", "embed", "embed"), ("generate", "generate", "decode"), ("", "", "prefill"))
    for label, kind, rate in rows:
        counts = [str(getattr(step, name)[kind]) if step and kind else "" for name in ("running", "waiting")]
        name = Text(label or "of it prefill", style=COLOURS[rate])
        table.add_row(name, *counts, f"{state.rate(rate):.0f}")
    return table


def progress(state: DemoState) -> Text:
    """Passages embedded so far, as a bar; empty when the phase embeds none."""
    if not state.to_embed:
        return Text("no embeddings in this phase", style="dim")
    done = round(state.embedded / state.to_embed * 20)
    text = Text("█" * done, style=COLOURS["embed"]) + Text("·" * (20 - done), style="dim")
    return text + Text(f" {state.embedded}/{state.to_embed} passages")


def chats_text(state: DemoState) -> Text:
    """The end of what each chat has said."""
    if not state.chats:
        return Text("no chats in this phase", style="dim")
    lines = []
    for chat in state.chats:
        words = " ".join(chat.answer.split())
        shown = words if len(words) <= ANSWER else "…" + words[-ANSWER + 1 :]
        lines.append(Text(f"{chat.prompt[:ANSWER]}\n", style="dim") + Text(shown, style=COLOURS["decode"]))
    return Text("\n").join(lines)


def render(state: DemoState) -> RenderableType:
    """The whole view of one moment; later changes of `state` do not alter it."""
    right = Group(counts_table(state), Text(), progress(state), Text(), chats_text(state))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column()
    grid.add_column(width=ANSWER)
    grid.add_row(steps_table(state), right)
    return Panel(grid, title=f"{state.phase}, {state.elapsed:.0f} s", title_align="left", expand=False)


def plain_line(state: DemoState) -> str:
    """The moment in one line."""
    parts = [f"{state.phase}, {state.elapsed:.0f} s"]
    if state.to_embed:
        parts.append(f"{state.embedded}/{state.to_embed} passages")
    if state.steps:
        step = state.steps[-1]
        parts.append(f"step {step.number}: " + " ".join(f"{kind} {step.tokens[kind]}" for kind in COLOURS))
        for name, counts in (("running", step.running), ("waiting", step.waiting)):
            parts.append(f"{name} {counts['embed']} embed {counts['generate']} generate")
    parts.append("tokens/s " + " ".join(f"{kind} {state.rate(kind):.0f}" for kind in COLOURS))
    return " | ".join(parts)


class View(Protocol):
    """What the demo tells its user; used as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: RenderableType) -> None:
        """Print something that stays."""

    def waiting(self, text: str) -> None:
        """Show what is being waited for, in place of what was shown last."""

    def streaming(self, text: str) -> None:
        """Show an answer as it grows."""

    def update(self, state: DemoState) -> None:
        """Show the moment."""


class LiveView:
    """A view that redraws itself in place, and is gone at the end, what was said excepted."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.update(Text(), refresh=True)
        self._live.stop()

    def say(self, text: RenderableType) -> None:
        self._live.update(Text(), refresh=True)
        self._live.console.print(text, highlight=False)

    def waiting(self, text: str) -> None:
        self._live.update(Text(text, style="dim"), refresh=True)

    def streaming(self, text: str) -> None:
        self._live.update(Text(text, style=COLOURS["decode"]), refresh=True)

    def update(self, state: DemoState) -> None:
        self._live.update(render(state), refresh=True)


class PlainView:
    """Lines of progress, one every few seconds, for output that is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, text: RenderableType) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
        self._next = 0.0

    def waiting(self, text: str) -> None:
        self._line(text)

    def streaming(self, text: str) -> None:
        pass  # the whole answer is said in the end

    def update(self, state: DemoState) -> None:
        self._line(plain_line(state))

    def _line(self, text: str) -> None:
        if time.monotonic() >= self._next:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
            self._next = time.monotonic() + PLAIN_SECONDS
