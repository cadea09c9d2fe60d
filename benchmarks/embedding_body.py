"""Milliseconds to validate the body of an embedding request: vLLM's whole union, and the member that we take.

Run: python benchmarks/embedding_body.py. Prints the median over 21 bodies, the two in turn.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from pydantic import TypeAdapter

from orthrus.engine.compat import EmbeddingRequest
from orthrus.server.embedding_body import embedding_request

ROUNDS = 21
BODIES = {
    "a text of 2 500 characters": "words " * 416,
    "64 such texts": ["words " * 416] * 64,
    "512 tokens": list(range(512)),
    "2 048 tokens": list(range(2048)),
    "64 times 512 tokens": [list(range(512))] * 64,
}


def main() -> None:
    whole = TypeAdapter[Any](EmbeddingRequest).validate_python
    sys.stdout.write(f"{'input':<28}{'union ms':>10}{'member ms':>11}\n")
    for name, given in BODIES.items():
        body = {"model": "m", "input": given}
        times: dict[Callable[[Any], Any], list[float]] = {whole: [], embedding_request: []}
        for _ in range(ROUNDS):
            for validate, taken in times.items():
                start = time.perf_counter()
                validate(body)
                taken.append(time.perf_counter() - start)
        union, member = (median(taken) * 1e3 for taken in times.values())
        sys.stdout.write(f"{name:<28}{union:>10.2f}{member:>11.3f}\n")


if __name__ == "__main__":
    main()
