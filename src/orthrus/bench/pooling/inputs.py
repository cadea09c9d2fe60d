"""Real text of chosen lengths, as token ids: the shipped passages, one after the other, cut where wanted."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

import numpy as np


@cache
def passages() -> tuple[str, ...]:
    """The texts of `orthrus/retrieval/data/passages.jsonl`, in order."""
    lines = (files("orthrus.retrieval") / "data" / "passages.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line)["text"] for line in lines)


def encoded(model: str) -> list[list[int]]:
    """Token ids of each passage, without special tokens. `model` is a local folder or a Hugging Face id."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    ids: list[list[int]] = tokenizer(list(passages()), add_special_tokens=False)["input_ids"]
    return ids


def of_mixed_length(
    texts: list[list[int]], count: int, shortest: int, longest: int, seed: int
) -> list[list[int]]:
    """`count` inputs whose lengths are log-uniform, the extremes among them; each begins at some passage."""
    chance = np.random.default_rng(seed)
    lengths = np.exp(chance.uniform(np.log(shortest), np.log(longest), count)).round().astype(int)
    lengths[:2] = (shortest, longest)[: len(lengths)]
    starts = chance.permutation(len(texts) * (count // len(texts) + 1))[:count] % len(texts)
    return [running(texts, int(start), int(length)) for start, length in zip(starts, lengths, strict=True)]


def running(texts: list[list[int]], start: int, length: int) -> list[int]:
    """`length` tokens from passage `start` on, going on with the next passages."""
    found: list[int] = []
    while len(found) < length:
        found += texts[start % len(texts)]
        start += 1
    return found[:length]
