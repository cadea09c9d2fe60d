"""From a workload to its requests: deterministic by seed, exact in shares and lengths.

Prompts are token ids, so that a length is what it says for any tokenizer. Ids are drawn from a range that
holds ordinary tokens in every vocabulary we know; which ones they are does not change the work.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from orthrus.bench.shapes import Dataset, Lengths, LogNormal, Mix, Phases, Sessions, Trace, Workload
from orthrus.bench.spec import SpecError

Kind = Literal["embed", "generate"]
LOW_ID, HIGH_ID = 1000, 10_000
LARGEST_BLOCK = 1000


@dataclass(frozen=True)
class Request:
    """One request to send. `pause` seconds pass before it; `at` is its time in a trace, else None."""

    id: int
    kind: Kind
    prompt: tuple[int, ...]
    output_tokens: int = 0
    adapter: str | None = None
    phase: int = 0
    session: int | None = None
    pause: float = 0.0
    at: float | None = None


Unit = list[Request]
"""Requests that one client sends one after another: a single request, or a session."""


def units(workload: Workload, seed: int, model: str, phase: int = 0) -> Iterator[Unit]:
    """The workload's units in order: endless, but for a trace. Equal arguments give equal requests."""
    maker = Maker(workload, seed, model)
    if isinstance(workload, Mix):
        return ([maker.request(i, kind)] for i, kind in enumerate(kinds(workload.embed_share, seed)))
    if isinstance(workload, Phases):
        sequence = kinds(workload.embed_shares[phase], seed + phase)
        offset = phase * 10_000_000
        return ([replace(maker.request(offset + i, kind), phase=phase)] for i, kind in enumerate(sequence))
    if isinstance(workload, Sessions):
        return maker.sessions(workload)
    assert isinstance(workload, Trace)
    return maker.trace(workload)


def units_of_kind(workload: Workload, seed: int, model: str, kind: Kind, phase: int = 0) -> Iterator[Unit]:
    """Endless units of one kind only, for clients that keep to one kind."""
    maker = Maker(workload, seed, model)
    first = phase * 10_000_000 + (0 if kind == "embed" else 1)
    return ([replace(maker.request(i, kind), phase=phase)] for i in range(first, 2**62, 2))


def kinds(embed_share: float, seed: int) -> Iterator[Kind]:
    """An endless sequence of kinds in which each block holds the share exactly, in a seeded order.

    A block is the fewest requests that can hold the share (10 for 0.1), at most LARGEST_BLOCK.
    """
    share = Fraction(embed_share).limit_denominator(LARGEST_BLOCK)
    rng = np.random.default_rng([seed, 1])
    while True:
        for place in rng.permutation(share.denominator):
            yield "embed" if place < share.numerator else "generate"


def embed_clients(embed_share: float, clients: int) -> int:
    """How many of `clients` embed when clients keep to one kind: nearest to the share, both kinds present."""
    if embed_share in (0, 1):
        return round(embed_share) * clients
    return min(max(round(embed_share * clients), 1), max(clients - 1, 1))


class Maker:
    """Makes single requests; each has a random generator of its own, so that order does not matter."""

    def __init__(self, workload: Workload, seed: int, model: str) -> None:
        self._workload = workload
        self._seed = seed
        self._model = model

    def request(self, index: int, kind: Kind) -> Request:
        """Request number `index` of the workload, as an embedding or a generation."""
        rng = np.random.default_rng([self._seed, 2, index])
        if kind == "embed":
            shape = self._workload.embed
            return Request(index, kind, self._prompt(shape.tokens, index, rng), adapter=shape.adapter)
        target = self._workload.generate
        prompt = self._prompt(target.prompt_tokens, index, rng)
        output = target.output_tokens
        if isinstance(output, LogNormal):
            output = sample(output, rng)
        return Request(index, kind, prompt, output, target.adapter)

    def sessions(self, workload: Sessions) -> Iterator[Unit]:
        """Sessions of embed, pause, generate, repeated."""
        for session in range(2**62):
            unit: Unit = []
            for round_ in range(workload.rounds):
                index = 2 * (session * workload.rounds + round_)
                unit.append(replace(self.request(index, "embed"), session=session))
                pause = workload.search_seconds
                unit.append(replace(self.request(index + 1, "generate"), session=session, pause=pause))
            yield unit

    def trace(self, workload: Trace) -> Iterator[Unit]:
        """The trace's requests by time, which is divided by its speed."""
        for index, line in enumerate(read_trace(workload.path)):
            rng = np.random.default_rng([self._seed, 2, index])
            yield [
                Request(
                    id=index,
                    kind=line["kind"],
                    prompt=random_ids(line["tokens"], rng),
                    output_tokens=line.get("output_tokens", 0),
                    adapter=line.get("adapter"),
                    at=line["at"] / workload.speed,
                )
            ]

    def _prompt(self, lengths: Lengths, index: int, rng: np.random.Generator) -> tuple[int, ...]:
        if isinstance(lengths, Dataset):
            rows = dataset_rows(lengths.dataset, self._model)
            row = rows[_shuffled(len(rows), self._seed)[index % len(rows)]]
            if isinstance(row, int):
                return random_ids(min(row, lengths.max), rng)
            return row[: lengths.max]
        return random_ids(sample(lengths, rng) if isinstance(lengths, LogNormal) else lengths, rng)


def sample(lengths: LogNormal, rng: np.random.Generator) -> int:
    """One length in tokens."""
    drawn = rng.lognormal(math.log(lengths.median), lengths.sigma)
    return int(min(max(round(drawn), lengths.min), lengths.max))


def random_ids(tokens: int, rng: np.random.Generator) -> tuple[int, ...]:
    """`tokens` token ids, uniform in [LOW_ID, HIGH_ID)."""
    return tuple(rng.integers(LOW_ID, HIGH_ID, tokens).tolist())


@lru_cache(maxsize=8)
def _shuffled(count: int, seed: int) -> list[int]:
    order: list[int] = np.random.default_rng([seed, 3]).permutation(count).tolist()
    return order


@lru_cache(maxsize=8)
def dataset_rows(path: Path, model: str) -> list[int | tuple[int, ...]]:
    """Lengths or token ids of a JSONL dataset; SpecError names the line that cannot be used."""
    rows: list[int | tuple[int, ...]] = []
    tokenizer: Any = None
    for number, line in _lines(path):
        if isinstance(line.get("tokens"), int) and line["tokens"] > 0:
            rows.append(line["tokens"])
        elif isinstance(line.get("token_ids"), list) and line["token_ids"]:
            rows.append(tuple(line["token_ids"]))
        elif isinstance(line.get("text"), str) and line["text"]:
            if tokenizer is None:
                from transformers import AutoTokenizer

                tokenizer = AutoTokenizer.from_pretrained(model)
            rows.append(tuple(tokenizer(line["text"], add_special_tokens=False)["input_ids"]))
        else:
            raise SpecError(f"{path}:{number}: needs `tokens` (above 0), `token_ids` or `text`")
    if not rows:
        raise SpecError(f"{path}: is empty")
    return rows


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The lines of a trace, by time; SpecError names the line that cannot be used."""
    result = []
    for number, line in _lines(path):
        kind, at, tokens = line.get("kind"), line.get("at"), line.get("tokens")
        if kind not in ("embed", "generate"):
            raise SpecError(f"{path}:{number}: kind is {kind!r}, must be embed or generate")
        if not isinstance(at, int | float) or at < 0:
            raise SpecError(f"{path}:{number}: at is {at!r}, must be seconds of at least 0")
        if not isinstance(tokens, int) or tokens < 1:
            raise SpecError(f"{path}:{number}: tokens is {tokens!r}, must be a whole number of at least 1")
        output = line.get("output_tokens")
        if kind == "generate" and (not isinstance(output, int) or output < 1):
            raise SpecError(
                f"{path}:{number}: output_tokens is {output!r}, must be a whole number of at least 1"
            )
        result.append(line)
    if not result:
        raise SpecError(f"{path}: is empty")
    return sorted(result, key=lambda line: float(line["at"]))


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise SpecError(f"{path}:{number}: not JSON: {error.msg}") from error
        if not isinstance(line, dict):
            raise SpecError(f"{path}:{number}: must be a JSON object")
        yield number, line
