"""An aim for how long a step takes: how many prompt tokens fit is learnt from the steps that ran."""

from __future__ import annotations

from math import inf

MIN_PROMPT_TOKENS = 16
"""A step never holds fewer: where even that takes longer than the aim, prompts still go on."""

_MOST_SHORTENED, _MOST_LENGTHENED = 0.5, 1.25
"""From one step to the next: quickly away from a missed aim, slowly towards a longer step."""


class StepTime:
    """Finds how many prompt tokens a step of `target_s` seconds holds, from one such step after the other.

    `fits` is that number; infinite until a step took longer.
    """

    def __init__(self, target_s: float) -> None:
        self.fits = inf
        self._target_s = target_s

    def learn(self, prompt_tokens: int, seconds: float) -> None:
        """A step held `prompt_tokens` (at least 1) and took `seconds`.

        At so many a second `in_proportion` would have fitted: by a step's fixed cost too few if this one was
        short, too many if it was longer than one that fits.
        """
        in_proportion = prompt_tokens * self._target_s / max(seconds, 1e-9)
        if seconds > self._target_s:
            shortest = _MOST_SHORTENED * min(self.fits, prompt_tokens)
            self.fits = max(MIN_PROMPT_TOKENS, min(self.fits, max(in_proportion, shortest)))
        elif in_proportion > self.fits:
            self.fits = min(in_proportion, _MOST_LENGTHENED * self.fits)
