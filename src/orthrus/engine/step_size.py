"""How many tokens a step may hold: on CPU fewer while generations are about, so that their tokens come often.

Every stream's next token waits for the whole step, and so does a chat that arrives during one. A GPU runs
vLLM's default budget in tens of milliseconds, a CPU in seconds.
"""

from __future__ import annotations

import time
from math import inf

from orthrus.engine.itl_target import ItlTarget

CPU_PROMPT_TOKENS = 256
RECENT_S = 10.0
"""Steps stay small this long after the last generation: where one chat came, the next is likely."""


class StepSize:
    """Bounds the prompt tokens (embeddings and prefills) of a step beside generations.

    `prompt_tokens` is the most of them, `itl_target_s` the seconds a step with decodes should take at most; 0
    sets no bound.
    """

    def __init__(self, prompt_tokens: int, itl_target_s: float) -> None:
        self._prompt_tokens = prompt_tokens or inf
        self._itl_target = ItlTarget(itl_target_s) if itl_target_s else None
        self._last_generation = -RECENT_S

    def saw_generation(self) -> None:
        """A step of generations alone begins: it has vLLM's budget."""
        self._last_generation = time.monotonic()
        if self._itl_target is not None:
            self._itl_target.forget_step()

    def ran(self, prompt_tokens: int) -> None:
        """The prompt tokens of the step whose budget was asked for last."""
        if self._itl_target is not None:
            self._itl_target.ran(prompt_tokens)

    def tokens(self, budget: int, decodes: int, generates: bool) -> int:
        """The token budget of the next step, out of the engine's `budget`, `decodes` of it for decodes.

        `generates`: a generation runs or waits now.
        """
        now = time.monotonic()
        if generates:
            self._last_generation = now
        is_recent = now - self._last_generation < RECENT_S
        most = self._prompt_tokens if is_recent else inf
        if self._itl_target is not None:
            most = min(most, self._itl_target.prompt_tokens(now, decodes))
        return int(min(budget, decodes + most))
