"""What the demo knows at a moment: the workload writes it, the views read it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from orthrus.demo.metrics import Counters
from orthrus.demo.trace import Step

SHOWN_STEPS = 16
RATE_WINDOW = 5.0


@dataclass
class Chat:
    """One lane of streaming chats: the current prompt and its answer so far."""

    prompt: str = ""
    answer: str = ""
    finished: int = 0


@dataclass
class DemoState:
    """Progress of the current phase. `gaps` are seconds between two pieces of a chat's stream."""

    phase: str = ""
    started: float = field(default_factory=time.monotonic)
    embedded: int = 0
    to_embed: int = 0
    chats: list[Chat] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=SHOWN_STEPS))
    readings: deque[Counters] = field(default_factory=deque)

    def begin(self, phase: str, *, to_embed: int = 0, chats: int = 0) -> None:
        """Start a phase: everything but the engine's last steps starts anew."""
        self.phase, self.started = phase, time.monotonic()
        self.embedded, self.to_embed = 0, to_embed
        self.chats = [Chat() for _ in range(chats)]
        self.gaps, self.first_tokens = [], []
        self.readings.clear()

    @property
    def elapsed(self) -> float:
        """Seconds in this phase."""
        return time.monotonic() - self.started

    def add_reading(self, reading: Counters) -> None:
        """Take in a reading of /metrics and forget those that have left the window."""
        self.readings.append(reading)
        while len(self.readings) > 2 and reading.time - self.readings[1].time >= RATE_WINDOW:
            self.readings.popleft()

    def rate(self, kind: str) -> float:
        """Tokens of `kind` per second over the last seconds, from /metrics; 0 before two readings."""
        if len(self.readings) < 2:
            return 0.0
        return self.readings[-1].since(self.readings[0]).rate(kind)
