"""`python -m orthrus.bench.peers.openvino FOLDER --port 8000`: serve an exported model for a benchmark."""

from __future__ import annotations

import signal
import sys
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from orthrus.bench.peers.openvino.extra import EMBED, GENERATE, AdapterError, check_model, load, properties


def serve(
    folder: Annotated[Path, typer.Argument(help="Exported model, with the folders generate and embed.")],
    port: Annotated[int, typer.Option(help="Port on the loopback address.")] = 8000,
    served_model_name: Annotated[str | None, typer.Option(help="Default: the folder's name.")] = None,
    cores: Annotated[str, typer.Option(help="CPU cores that compute, as in 0 or 0,1.")] = "0",
    dtype: Annotated[
        str, typer.Option(help="bfloat16 or float32, for weights' use and KV cache.")
    ] = "bfloat16",
    kv_cache_gib: Annotated[int, typer.Option(min=1, help="KV cache of the generations.")] = 2,
) -> None:
    """Serve /v1/completions and /v1/embeddings from OpenVINO GenAI."""
    try:
        run(folder, port, served_model_name or folder.resolve().name, parse_cores(cores), dtype, kv_cache_gib)
    except AdapterError as error:
        sys.stderr.write(f"orthrus.bench.peers.openvino: {error}\n")
        raise typer.Exit(2) from error


def parse_cores(text: str) -> list[int]:
    """The numbers of `--cores`; AdapterError for anything else."""
    try:
        cores = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise AdapterError(f"--cores {text}: must be numbers, as in 0 or 0,1") from error
    if min(cores) < 0 or len(set(cores)) != len(cores):
        raise AdapterError(f"--cores {text}: must be different numbers from 0")
    return cores


def run(
    folder: Path,
    port: int,
    name: str,
    cores: list[int],
    dtype: str,
    kv_cache_gib: int,
) -> None:
    """Load both models and serve until a signal; AdapterError for what is missing."""
    settings = properties(dtype, len(cores))
    load("openvino_genai")
    uvicorn = load("uvicorn")
    load("starlette")
    check_model(folder)
    from orthrus.bench.peers.openvino.app import Api
    from orthrus.bench.peers.openvino.embedder import Embedder
    from orthrus.bench.peers.openvino.generator import Generator
    from orthrus.bench.peers.openvino.text import Text

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)  # uvicorn stops first, then raises the signal again
    with (
        closing(Embedder(folder / EMBED, cores, settings)) as embedder,
        closing(Generator(folder / GENERATE, cores, settings, kv_cache_gib)) as generator,
    ):
        app = Api(name, embedder, generator, Text(folder / GENERATE)).app()
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    typer.run(serve)
