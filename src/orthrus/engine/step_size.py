"""How many tokens a step may hold: on CPU fewer while generations are about, so that their tokens come often.

Every stream's next token waits for the whole step, and so does a chat that arrives during one. A GPU runs
vLLM's default budget in tens of milliseconds, a CPU in seconds.
"""

from __future__ import annotations

import time

CPU_PROMPT_TOKENS = 256
RECENT_S = 10.0
"""Steps stay small this long after the last generation: where one chat came, the next is likely."""


class StepSize:
    """Bounds the prompt tokens (embeddings and prefills) of a step beside generations; 0: no bound."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._last_generation = -RECENT_S

    def saw_generation(self) -> None:
        """A generation runs or waits now."""
        if self._prompt_tokens:
            self._last_generation = time.monotonic()

    def tokens(self, budget: int, decodes: int, generates: bool) -> int:
        """The token budget of the next step, out of the engine's `budget`, `decodes` of it for decodes.

        `generates`: a generation runs or waits now.
        """
        if not self._prompt_tokens:
            return budget
        now = time.monotonic()
        if generates:
            self._last_generation = now
        elif now - self._last_generation >= RECENT_S:
            return budget
        return min(budget, decodes + self._prompt_tokens)
