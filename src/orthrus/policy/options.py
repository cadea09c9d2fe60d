"""What an operator may set about a policy. Defaults are the paper's, but for the TTFT target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DAY_S = 86_400


class OptionError(ValueError):
    """A policy option has a value that is not allowed; the message names field, value and range."""

    def __init__(self, field: str, value: Any, allowed: str) -> None:
        super().__init__(f"{field} is {value!r}, must be {allowed}")
        self.field = field
        self.allowed = allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """Validated options; OptionError on a bad value.

    embed_chunk: most tokens of one embedding per opportunity (C of the paper, section 4.2).
    prefill_chunk: most tokens of one prefill per opportunity; 0 sets no limit but the step's budget.
    embed_bias: multiplies the embeddings' weight, 0.001 to 1000; 2 counts each embedding token twice.
    max_embed_share: upper bound on the embeddings' part of a step's token budget (decodes included in it).
    count_decode: count expected decode tokens as generation work, and charge the decodes that ran.
    ttft_target_s: seconds to first token to aim at, a day at most; 0 sets no target, as in the paper.
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
        _number("embed_bias", self.embed_bias, 1e-3, 1e3)
        _number("max_embed_share", self.max_embed_share, 1e-3, 1.0)
        if not isinstance(self.count_decode, bool):
            raise OptionError("count_decode", self.count_decode, "true or false")
        _number("ttft_target_s", self.ttft_target_s, 0, DAY_S, " (seconds)")


def _integer(field: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(field, value, f"a whole number of at least {least}")


def _number(field: str, value: Any, least: float, most: float, unit: str = "") -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise OptionError(field, value, f"a number from {least:g} to {most:g}{unit}")
