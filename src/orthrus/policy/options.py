"""What an operator may set about a policy. Defaults are the paper's, but for the TTFT target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


class OptionError(ValueError):
    """A policy option has a value that is not allowed; the message names field, value and range."""

    def __init__(self, field: str, value: Any, allowed: str) -> None:
        super().__init__(f"{field} is {value!r}, must be {allowed}")
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """Validated options; OptionError on a bad value.

    embed_chunk: most tokens of one embedding per opportunity (C of the paper, section 4.2).
    prefill_chunk: most tokens of one prefill per opportunity; 0 sets no limit but the step's budget.
    embed_bias: multiplies the embeddings' weight; 2 counts each waiting embedding token twice.
    max_embed_share: upper bound on the embeddings' part of a step's token budget (decodes included in it).
    count_decode: count expected decode tokens as generation work, and charge the decodes that ran.
    ttft_target_s: seconds to first token to aim at; 0 sets no target, as in the paper.
    """

    embed_chunk: int = 256
    prefill_chunk: int = 0
    embed_bias: float = 1.0
    max_embed_share: float = 1.0
    count_decode: bool = False
    ttft_target_s: float = 0.5

    def __post_init__(self) -> None:
        _integer("embed_chunk", self.embed_chunk, 1)
        _integer("prefill_chunk", self.prefill_chunk, 0)
        _positive("embed_bias", self.embed_bias, math.inf)
        _positive("max_embed_share", self.max_embed_share, 1.0)
        if not isinstance(self.count_decode, bool):
            raise OptionError("count_decode", self.count_decode, "true or false")
        if isinstance(self.ttft_target_s, bool) or self.ttft_target_s != 0:
            _positive("ttft_target_s", self.ttft_target_s, math.inf, " of seconds, or 0")


def _integer(field: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(field, value, f"a whole number of at least {least}")


def _positive(field: str, value: Any, most: float, suffix: str = "") -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= most or math.isinf(value):
        upper = "" if math.isinf(most) else f" and at most {most:g}"
        raise OptionError(field, value, f"a finite number greater than 0{upper}{suffix}")
