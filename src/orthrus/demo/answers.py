"""Answering by retrieval: the passages nearest to a question go into a chat prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from orthrus.demo.questions import Question
from orthrus.retrieval.passages import Passage
from orthrus.retrieval.standardise import Standardiser
from orthrus.retrieval.store import Hit, VectorStore

TOP = 3
STATISTICS = "standardiser.npz"


class Library:
    """The store of this run's vectors, standardised with the passages' own statistics."""

    def __init__(self, folder: Path, passages: Sequence[Passage], vectors: NDArray[np.float32]) -> None:
        """Fill a new store in `folder` with `vectors` [n, d]; the statistics are saved beside it."""
        self._standardiser = Standardiser.fit(vectors)
        self._store = VectorStore(folder, vectors.shape[1])
        self._store.add(passages, self._standardiser.apply(vectors))
        np.savez(folder / STATISTICS, mean=self._standardiser.mean, deviation=self._standardiser.deviation)

    def nearest(self, vector: NDArray[np.float32]) -> list[Hit]:
        """The TOP passages for a question's vector [d], as it came from the server."""
        return self._store.search(self._standardiser.apply(vector), TOP)


def answer_prompt(question: str, hits: Sequence[Hit]) -> str:
    """The chat prompt that holds the passages and asks the question.

    The nearest passage comes last, beside the question: a small model attends best to what it read last.
    """
    passages = "\n\n".join(f"{hit.passage.title}: {hit.passage.text}" for hit in reversed(hits))
    return f"{passages}\n\nQuestion: {question}\nAnswer with the name and one sentence from the text above."


def answered(question: Question, hits: Sequence[Hit], answer: str, *, in_library: bool) -> Text:
    """Question, passages found (the right one marked) and answer, to print.

    `in_library` says whether the right passage was embedded in this run at all.
    """
    text = Text(f"\nQ: {question.text}\n", style="bold")
    ids = [hit.passage.id for hit in hits]
    for hit in hits:
        right = hit.passage.id == question.passage_id
        line = f"   {'✓' if right else ' '} {hit.passage.title} (cosine {hit.similarity:.2f})\n"
        text.append(line, style="not bold green" if right else "not bold dim")
    if question.passage_id not in ids:
        why = "is not among the three" if in_library else "was left out of this run by --passages"
        text.append(f"   The passage with the answer {why}.\n", style="not bold yellow")
    return text.append(f"A: {answer}", style="not bold")
