"""The passages that the package ships: real, freely licensed texts, named in data/SOURCES.md."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Passage:
    """One text with its origin. `text` is 40 to 180 words of English; `id` is unique."""

    id: str
    title: str
    text: str
    source: str
    licence: str

    @property
    def content(self) -> str:
        """What is embedded and what a chat model is shown: the title, then the text."""
        return f"{self.title}. {self.text}"


def load_passages(count: int | None = None) -> list[Passage]:
    """The first `count` shipped passages, all by default, in an order that mixes their sources.

    Raises ValueError when `count` is not between 1 and the number shipped.
    """
    lines = (
        files("orthrus.retrieval").joinpath("data/passages.jsonl").read_text(encoding="utf-8").splitlines()
    )
    if count is not None and not 1 <= count <= len(lines):
        raise ValueError(f"{count} passages asked for; allowed: 1 to {len(lines)}, the number shipped")
    passages = [Passage(**json.loads(line)) for line in lines]
    # The file is sorted by source; a stride prime to its length visits every passage once, in a fixed order.
    stride = next(n for n in (101, 103, 107) if len(passages) % n)
    return [passages[i * stride % len(passages)] for i in range(len(passages))][:count]
