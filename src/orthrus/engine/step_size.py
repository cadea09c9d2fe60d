"""How many tokens a step may hold: on CPU fewer while generations are about, so that their tokens come often.

Every stream's next token waits for the whole step, and so does a chat that arrives during one. A GPU runs
vLLM's default budget in tens of milliseconds, a CPU in seconds.
"""

from __future__ import annotations

import time
from math import inf

from orthrus.engine.step_time import StepTime

CPU_PROMPT_TOKENS = 256
RECENT_S = 10.0
"""Steps stay small this long after the last generation: where one chat came, the next is likely."""


class StepSize:
    """Bounds the prompt tokens (embeddings and prefills) of a step beside generations, or soon after them.

    `prompt_tokens` is the most of them, and 0 sets no bound. `itl_target_s` are the seconds a step with
    decodes should take at most; 0 sets no aim.

    A step's time is taken from one call to the next. Under asynchronous scheduling that is one step late.
    """

    def __init__(self, prompt_tokens: int, itl_target_s: float) -> None:
        self._prompt_tokens = prompt_tokens or inf
        self._step_time = StepTime(itl_target_s) if itl_target_s else None
        self._last_generation = -RECENT_S
        self._began: float | None = None
        self._ran = 0

    def saw_no_embeddings(self, generates: bool) -> None:
        """A step without embeddings begins, and has vLLM's budget. `generates` as in `tokens`."""
        self._began = None
        if generates:
            self._last_generation = time.monotonic()

    def ran(self, prompt_tokens: int) -> None:
        """The prompt tokens of the step whose budget was asked for last."""
        self._ran = prompt_tokens

    def tokens(self, budget: int, decodes: int, generates: bool) -> int:
        """The token budget of the next step, out of the engine's `budget`, `decodes` of it for decodes.

        `generates`: a generation runs or waits now.
        """
        now = time.monotonic()
        if generates:
            self._last_generation = now
        elif now - self._last_generation >= RECENT_S:
            self._began = None
            return budget
        most = self._prompt_tokens
        if self._step_time is not None:
            if decodes and self._began is not None and self._ran:  # without decodes the engine may have slept
                self._step_time.learn(self._ran, now - self._began)
            self._began = now if decodes else None
            self._ran = 0
            if decodes:
                most = min(most, self._step_time.fits)
        return int(min(budget, decodes + most))
