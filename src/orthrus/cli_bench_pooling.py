"""Sub-commands of `orthrus bench` for embeddings alone: `pooling`, `prefix-reuse`, `chunked`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

DTYPES = ("bfloat16", "float32")

Model = Annotated[str, typer.Option(help="Sample model, Hugging Face id or folder.")]
Seed = Annotated[int, typer.Option(help="Seed of the inputs' lengths and order.")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float32.")]
Out = Annotated[Path, typer.Option(help="Folder of the JSON result.")]
LIMIT_TOKENS = 2048


@contextmanager
def _told() -> Iterator[None]:
    """An engine that failed, as a message and status 1."""
    from orthrus.bench.pooling.engine_process import EngineFailedError

    try:
        yield
    except EngineFailedError as error:
        sys.stderr.write(f"orthrus bench: the engine failed:\n{error}\n")
        raise typer.Exit(1) from error


def pooling(
    model: Model = "smollm2",
    count: Annotated[int, typer.Option(min=1, help="Inputs of 5 to 2 000 tokens.")] = 250,
    chunk: Annotated[list[int] | None, typer.Option(help="Tokens of a step; default 256, 512, 1024.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Default: bfloat16 and float32.")] = None,
    seed: Seed = 0,
    out: Out = Path("out/pooling"),
) -> None:
    """Chunked against one-pass vectors for every streaming head (paper, table 7)."""
    from orthrus import models
    from orthrus.bench.pooling.equivalence import measure

    chunks, dtypes = chunk or [256, 512, 1024], dtype or list(DTYPES)
    for size in chunks:
        _check_chunk(size)
    for name in dtypes:
        _check_dtype(name)
    with _told():
        measure(models.resolve(model), count, chunks, dtypes, seed, out, Console())


def prefix_reuse(
    model: Model = "smollm2",
    count: Annotated[int, typer.Option(min=1, help="Passages.")] = 500,
    instruction_tokens: Annotated[int, typer.Option(min=1, max=1024, help="Tokens they share.")] = 400,
    dtype: Dtype = "bfloat16",
    out: Out = Path("out/pooling"),
) -> None:
    """What the reuse of a shared instruction saves, in tokens and time, and that vectors stay equal."""
    from orthrus import models
    from orthrus.bench.pooling.reuse import measure

    _check_dtype(dtype)
    with _told():
        measure(models.resolve(model), count, instruction_tokens, dtype, out, Console())


def chunked(
    model: Model = "smollm2",
    count: Annotated[int, typer.Option(min=1, help="Inputs of 5 to 2 000 tokens.")] = 250,
    chunk: Annotated[int, typer.Option(help="Tokens of a chunk.")] = 512,
    repetitions: Annotated[int, typer.Option(min=1, help="Engines of either kind, taking turns.")] = 2,
    dtype: Dtype = "bfloat16",
    seed: Seed = 0,
    out: Out = Path("out/pooling"),
) -> None:
    """Latency and throughput of chunked against atomic embedding, one input at a time (paper, table 9)."""
    from orthrus import models
    from orthrus.bench.pooling.chunked import measure

    _check_chunk(chunk)
    _check_dtype(dtype)
    with _told():
        measure(models.resolve(model), count, chunk, repetitions, dtype, seed, out, Console())


def _check_chunk(chunk: int) -> None:
    if not 16 <= chunk < LIMIT_TOKENS:
        raise typer.BadParameter(f"--chunk {chunk}: allowed are 16 to {LIMIT_TOKENS - 1} tokens")


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise typer.BadParameter(f"--dtype {dtype}: allowed are {', '.join(DTYPES)}")
