"""Sub-commands of `orthrus bench` for embeddings alone: pooling, pooling-cost, prefix-reuse, chunked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from orthrus.bench.pooling.report import Session

DTYPES = ("bfloat16", "float32")

Model = Annotated[str, typer.Option(help="Sample model, Hugging Face id or folder.")]
Seed = Annotated[int, typer.Option(help="Seed of the inputs' choice, lengths and order.")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float32.")]
Out = Annotated[
    Path, typer.Option(help="Folder of the raw data (.jsonl), the summary (.json) and the report (.md).")
]
LIMIT_TOKENS = 2048


@contextmanager
def _session(out: Path) -> Iterator[Session]:
    """Where a command prints and writes; an engine that failed becomes a message and status 1."""
    from orthrus.bench.pooling.engine_process import EngineFailedError
    from orthrus.bench.pooling.report import Session

    try:
        yield Session(Console(), out)
    except EngineFailedError as error:
        sys.stderr.write(f"orthrus bench: the engine failed:\n{error}\n")
        raise typer.Exit(1) from error


def pooling(
    model: Model = "smollm2",
    count: Annotated[int, typer.Option(min=1, help="Inputs of 5 to 2 000 tokens.")] = 250,
    chunk: Annotated[list[int] | None, typer.Option(help="Tokens of a step; default 256, 512, 1024.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Default: bfloat16 and float32.")] = None,
    batch_invariant: Annotated[
        bool,
        typer.Option("--batch-invariant", help="Engines that give a prompt the same bits in any chunks."),
    ] = False,
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
    with _session(out) as session:
        measure(models.resolve(model), count, chunks, dtypes, seed, session, batch_invariant=batch_invariant)


def pooling_cost(
    model: Model = "smollm2",
    tokens: Annotated[int, typer.Option(min=64, help="Embedding tokens of a step.")] = 2048,
    requests: Annotated[list[int] | None, typer.Option(help="Requests of a step; default 1, 16, 64.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Steps of each kind.")] = 5,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="The engine's generation slots.")] = 256,
    pooling_buffer_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the buffered head.")] = 16384,
    dtype: Dtype = "bfloat16",
    out: Out = Path("out/pooling"),
) -> None:
    """Pooling's share of a step's forward pass, and its memory, for each head."""
    from orthrus import models
    from orthrus.bench.pooling.cost import measure

    counts = requests or [1, 16, 64]
    most = min(tokens, max_num_seqs)
    for count in counts:
        # Each request holds its prompt in whole pages of 64 tokens.
        if not 1 <= count <= most or pooling_buffer_tokens < tokens + 64 * count:
            raise typer.BadParameter(
                f"--requests {count}: allowed are 1 to {most} (--tokens, --max-num-seqs), "
                f"and as many as a buffer of {pooling_buffer_tokens} tokens holds (--pooling-buffer-tokens)"
            )
    _check_dtype(dtype)
    with _session(out) as session:
        measure(
            models.resolve(model),
            tokens,
            counts,
            repeats,
            max_num_seqs,
            pooling_buffer_tokens,
            dtype,
            session,
        )


def prefix_reuse(
    model: Model = "smollm2",
    count: Annotated[int, typer.Option(min=1, help="Passages.")] = 500,
    instruction_tokens: Annotated[int, typer.Option(min=1, max=1024, help="Tokens they share.")] = 400,
    dtype: Dtype = "bfloat16",
    seed: Seed = 0,
    out: Out = Path("out/pooling"),
) -> None:
    """What the reuse of a shared instruction saves, in tokens and time, and that vectors stay equal."""
    from orthrus import models
    from orthrus.bench.pooling.reuse import measure

    _check_dtype(dtype)
    with _session(out) as session:
        measure(models.resolve(model), count, instruction_tokens, dtype, seed, session)


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
    with _session(out) as session:
        measure(models.resolve(model), count, chunk, repetitions, dtype, seed, session)


def _check_chunk(chunk: int) -> None:
    if not 16 <= chunk < LIMIT_TOKENS:
        raise typer.BadParameter(f"--chunk {chunk}: allowed are 16 to {LIMIT_TOKENS - 1} tokens")


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise typer.BadParameter(f"--dtype {dtype}: allowed are {', '.join(DTYPES)}")
