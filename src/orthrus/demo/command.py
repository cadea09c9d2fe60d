"""`orthrus demo`: the command line."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import httpx
import openai
import typer
from rich.console import Console
from rich.text import Text

from orthrus.demo.metrics import MissingCountersError
from orthrus.demo.run import DemoOptions, run_demo
from orthrus.demo.server import ServerError
from orthrus.demo.view import LiveView, PlainView, View
from orthrus.models import SAMPLES, get
from orthrus.models.cache import ChecksumError
from orthrus.models.smollm2 import FetchError
from orthrus.retrieval.passages import load_passages

FAILURES = (
    FetchError,
    ChecksumError,
    ServerError,
    MissingCountersError,
    openai.OpenAIError,
    httpx.HTTPError,
)
INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C


def demo(
    model: Annotated[
        str, typer.Option(help="A sample model's name, a folder, or a Hugging Face id.")
    ] = "smollm2",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the server; 0 takes a free one.")] = 0,
    passages: Annotated[
        int | None,
        typer.Option(min=2, help="How many to embed. [default: all, or what takes 45 s]"),
    ] = None,
    chats: Annotated[int, typer.Option(min=1, max=8, help="How many chats stream at once.")] = 4,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines of progress instead of the live view.")
    ] = False,
    keep_vectors: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the vector store in this new folder.")
    ] = None,
    save_picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the live view at half time and the results as SVG."),
    ] = None,
) -> None:
    """One engine chats and embeds at once, answers questions with the vectors, and says what it cost."""
    console = Console()
    if keep_vectors and keep_vectors.exists() and (not keep_vectors.is_dir() or any(keep_vectors.iterdir())):
        raise typer.BadParameter(
            f"{keep_vectors} exists and is not an empty folder", param_hint="--keep-vectors"
        )
    try:
        load_passages(passages)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--passages") from error
    view: View = PlainView(console) if plain or not console.is_terminal else LiveView(console)
    try:
        with view:
            found = find_model(model, view)
            options = DemoOptions(found, port, passages, chats, keep_vectors, save_picture)
            asyncio.run(until_terminated(options, view))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("Interrupted; nothing is left running.")
        raise typer.Exit(INTERRUPTED) from None
    except FAILURES as error:
        console.print(Text(f"The demo failed: {error}", style="red"), soft_wrap=True)
        raise typer.Exit(1) from error


def find_model(model: str, view: View) -> str:
    """What the server is to load: a sample model's folder, fetched on first use, or `model` unchanged."""
    if model not in SAMPLES or Path(model).exists():
        return model
    return str(get(model, lambda stage: view.waiting(f"{model}: {stage}")))


async def until_terminated(options: DemoOptions, view: View) -> None:
    """Run the demo; SIGTERM ends it as Ctrl-C does, by cancelling it."""
    task = asyncio.current_task()
    assert task is not None  # this is a coroutine, so a task runs it
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await run_demo(options, view)
