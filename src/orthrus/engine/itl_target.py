"""An aim for the inter-token latency: steps that hold decodes are shortened until they take that long."""

from __future__ import annotations

from math import inf

MIN_PROMPT_TOKENS = 16
"""A step never holds fewer: where the decodes alone take longer than the target, prompts still go on."""

_MOST_SHORTENED, _MOST_LENGTHENED = 0.5, 1.25
"""From one step to the next: quickly away from a missed target, slowly towards a longer step."""


class ItlTarget:
    """Finds how many prompt tokens fit beside decodes into a step of `target_s` seconds, from the last one.

    A step's time is what its streams wait for their next token. It is taken from one call of the scheduler
    to the next, so under asynchronous scheduling the answer comes one step later.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._fits = inf
        self._started: float | None = None
        self._ran = 0

    def prompt_tokens(self, now: float, decodes: int) -> float:
        """Most prompt tokens of the step that begins `now` (seconds); infinite without `decodes`."""
        if decodes and self._started is not None and self._ran:  # without decodes the engine may have slept
            self._learn(now - self._started)
        self._started = now if decodes else None
        self._ran = 0
        return self._fits if decodes else inf

    def ran(self, prompt_tokens: int) -> None:
        """What the step held that began last."""
        self._ran = prompt_tokens

    def forget_step(self) -> None:
        """Other steps come in between: the next call does not tell how long the last one took."""
        self._started = None

    def _learn(self, seconds: float) -> None:
        factor = min(_MOST_LENGTHENED, max(_MOST_SHORTENED, self._target_s / max(seconds, 1e-9)))
        if factor < 1:
            self._fits = max(MIN_PROMPT_TOKENS, min(self._fits, self._ran) * factor)
        elif self._ran >= self._fits - 1:  # a step that was not full does not tell what would have fitted
            self._fits *= factor
