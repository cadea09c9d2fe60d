"""Requests that later ones pass, because what they need is not free: how often, so that it can be bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Overtaken:
    """The earliest request that could not start, and how many later ones have started since."""

    request_id: str
    order: Any
    count: int = 0
