"""The workload and the machine of the fill simulation (paper A.3), with every assumption as a field."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum


class Embedding(StrEnum):
    """How an embedding may enter a step."""

    ATOMIC = "atomic"
    """Whole or not at all: it waits for a step with room for all of it."""
    WHOLE_CHUNKS = "whole-chunks"
    """In chunks of min(C, what is left of it); one that does not fit leaves the rest of the step unused."""
    CHUNKED = "chunked"
    """As whole chunks, but the last one is cut to what is left of the step: Orthrus' own rule."""


class ScenarioError(ValueError):
    """A field of a scenario has a value that is not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FillScenario:
    """Sizes in tokens, times in seconds. ScenarioError names a bad field, its value and what is allowed.

    Generation clients send one request per period each, at a random phase, whatever the server does.
    Embedding clients send the next request as soon as the last is answered. Embedding lengths are uniform
    between two bounds. A step with n tokens lasts `step_s + n * token_s`. Counting starts after
    `warmup_s` and goes on for `window_s`.
    """

    budget: int = 256
    chunk: int = 64
    generation_clients: int = 80
    embedding_clients: int = 20
    period_s: float = 6 / 7
    prompt_tokens: int = 15
    output_tokens: int = 21
    embed_min_tokens: int = 256
    embed_max_tokens: int = 256
    step_s: float = 100e-6
    token_s: float = 98e-6
    warmup_s: float = 36 / 7
    window_s: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            zero_allowed = field.name in ("step_s", "warmup_s", "seed", "generation_clients")
            if math.isnan(value) or math.isinf(value) or value < 0 or (value == 0 and not zero_allowed):
                least = "at least 0" if zero_allowed else "greater than 0"
                raise ScenarioError(f"{field.name} is {value}, must be finite and {least}")
        if not self.embed_min_tokens <= self.embed_max_tokens <= self.budget:
            raise ScenarioError(
                f"embedding lengths {self.embed_min_tokens}..{self.embed_max_tokens}: must be in order "
                f"and at most the budget of {self.budget}: a longer atomic embedding would wait for ever"
            )
        if self.chunk > self.budget:
            raise ScenarioError(f"chunk is {self.chunk}, must be at most the budget of {self.budget}")

    def assumptions(self) -> list[str]:
        """What a reader must know to judge the figures, one sentence each."""
        rate = self.generation_clients / self.period_s
        return [
            f"Token budget {self.budget} a step; embedding chunks of at most {self.chunk} tokens; IBS.",
            f"{self.generation_clients} generation and {self.embedding_clients} embedding clients: "
            "the mix is one of clients, not of requests served.",
            f"Each generation client sends a request every {self.period_s:.3f} s at a random phase, whether "
            f"or not the last is answered: {rate:.1f} requests/s in all, "
            f"each of {self.prompt_tokens} prompt and {self.output_tokens} output tokens.",
            "Each embedding client sends its next request when the last is answered, so embeddings always "
            f"wait; lengths are uniform in {self.embed_min_tokens}..{self.embed_max_tokens} tokens.",
            f"A step of n tokens lasts {self.step_s * 1e6:g} us + n * {self.token_s * 1e6:g} us.",
            "Slots and KV blocks never run out. Prompts may be cut anywhere; an atomic embedding needs a "
            "step with room for all of it.",
            f"Fill is the mean over steps, counted for {self.window_s:g} s after {self.warmup_s:.2f} s of "
            f"warm-up; seed {self.seed}.",
        ]
