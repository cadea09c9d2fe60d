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

_TTFT_PART = 0.5
"""The part of the TTFT target that a chat may wait for the step it comes upon; the rest is its prefill's."""


class StepSize:
    """Bounds the prompt tokens (embeddings and prefills) of a step beside generations, or soon after them.

    `prompt_tokens` is the most of them; `itl_target_s` the seconds a step with decodes should take at most;
    `ttft_target_s` twice the seconds one should that holds embeddings alone. 0 sets no bound.

    A step's time is taken from one call to the next. Under asynchronous scheduling that is one step late.
    """

    def __init__(self, prompt_tokens: int, itl_target_s: float, ttft_target_s: float) -> None:
        self._prompt_tokens = prompt_tokens or inf
        self._with_decodes = StepTime(itl_target_s) if itl_target_s else None
        self._embeddings_alone = StepTime(_TTFT_PART * ttft_target_s) if ttft_target_s else None
        self._last_generation = -RECENT_S
        self._timed: StepTime | None = None
        self._began = 0.0
        self._ran = self._left = 0

    def saw_no_embeddings(self, generates: bool) -> None:
        """A step without embeddings begins, and has vLLM's budget. `generates` as in `tokens`."""
        self._timed = None
        if generates:
            self._last_generation = time.monotonic()

    def ran(self, prompt_tokens: int, left: int) -> None:
        """What the step whose budget was asked for last held, and the prompt tokens it left to do."""
        self._ran, self._left = prompt_tokens, left

    def tokens(self, budget: int, decodes: int, generates: bool, embed_tokens: int) -> int:
        """The token budget of the next step, out of the engine's `budget`, `decodes` of it for decodes.

        `generates`: a generation runs or waits now. `embed_tokens` are what embeddings have left to compute.
        """
        now = time.monotonic()
        is_continuous = self._left or decodes  # else the engine may have slept since the last step
        if self._timed is not None and self._ran and is_continuous:
            self._timed.learn(self._ran, now - self._began)
        self._ran = self._left = 0
        self._began = now
        if generates:
            self._last_generation = now
            self._timed = self._with_decodes if decodes else None
        elif embed_tokens > self._prompt_tokens:
            self._timed = self._embeddings_alone
        else:
            self._timed = None  # a few short ones end in one step, and would be later in two
        if now - self._last_generation >= RECENT_S:
            return budget
        most = self._prompt_tokens if self._timed is None else min(self._prompt_tokens, self._timed.fits)
        return int(min(budget, decodes + most))
