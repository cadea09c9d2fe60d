"""How many of the demo's questions find their passage, by prompt, pooling and standardisation.

Run: .venv/bin/python scripts/measure_retrieval.py [MODEL FOLDER]  (about five minutes on one core)

Embeds with transformers in float32, the reference that the engine's vectors are tested against. This
is how the demo's way of embedding was chosen, and how it is known which questions it can answer.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from orthrus.demo.questions import EMBEDDING_PROMPT, QUESTIONS
from orthrus.models import resolve
from orthrus.retrieval.passages import load_passages
from orthrus.retrieval.standardise import Standardiser

BATCH = 8
Vectors = NDArray[np.float32]


class Encoder:
    """A causal checkpoint whose states are pooled both ways at once."""

    def __init__(self, folder: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def encode(self, texts: list[str]) -> dict[str, Vectors]:
        """Vectors [n, d] of length one: the last token's state, and the mean of all states."""
        ids = [self._tokenizer(text)["input_ids"] for text in texts]
        size = self._model.config.hidden_size
        result = {name: np.empty((len(texts), size), np.float32) for name in ("last", "mean")}
        order = sorted(range(len(texts)), key=lambda i: len(ids[i]))  # little padding
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            width = max(len(ids[i]) for i in rows)
            tokens = torch.tensor([ids[i] + [0] * (width - len(ids[i])) for i in rows])
            mask = torch.tensor([[1] * len(ids[i]) + [0] * (width - len(ids[i])) for i in rows])
            hidden = self._model(input_ids=tokens, attention_mask=mask).last_hidden_state
            for row, i in enumerate(rows):
                states = hidden[row, : len(ids[i])]
                result["last"][i], result["mean"][i] = states[-1].numpy(), states.mean(0).numpy()
        return {name: v / np.linalg.norm(v, axis=1, keepdims=True) for name, v in result.items()}


def ranks(documents: Vectors, queries: Vectors, right: list[int]) -> list[int]:
    """For each query the rank of its right document by cosine, 1 for the nearest."""
    scores = queries @ documents.T
    return [int((row > row[i]).sum()) + 1 for row, i in zip(scores, right, strict=True)]


def main(model: str = "smollm2") -> None:
    """Print the table, then each question's rank in the way that the demo uses."""
    passages = load_passages()
    place = {passage.id: i for i, passage in enumerate(passages)}
    right = [place[question.passage_id] for question in QUESTIONS]
    encoder = Encoder(str(resolve(model)))
    write = sys.stdout.write
    write(f"{'prompt':<9}{'pooling':<9}{'standardised':<14}first  in 3  in 10   of {len(QUESTIONS)}\n")
    for name, prompt in (("none", "{text}"), ("one word", EMBEDDING_PROMPT)):
        documents = encoder.encode([prompt.format(text=passage.content) for passage in passages])
        queries = encoder.encode([prompt.format(text=question.text) for question in QUESTIONS])
        for pooling in documents:
            vectors, asked = documents[pooling], queries[pooling]
            for standardised in (False, True):
                if standardised:
                    statistics = Standardiser.fit(vectors)
                    vectors, asked = statistics.apply(vectors), statistics.apply(asked)
                found = ranks(vectors, asked, right)
                counts = "".join(f"{sum(rank <= k for rank in found):<7}" for k in (1, 3, 10))
                write(f"{name:<9}{pooling:<9}{'yes' if standardised else 'no':<14}{counts}\n")
                if (name, pooling, standardised) == ("one word", "last", True):
                    used = found
    write("\nRanks in the way the demo uses (one word, last, standardised):\n")
    for question, rank in zip(QUESTIONS, used, strict=True):
        write(f"{rank:>4}  {question.text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
