"""The demo from the server's start to its end."""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

import httpx
from rich.console import Console, RenderableType
from rich.text import Text

from orthrus.demo.answers import Library, answer_prompt, answered
from orthrus.demo.client import DemoClient
from orthrus.demo.metrics import read_counters
from orthrus.demo.questions import CHAT_PROMPTS, HOW_CHOSEN, SHOWN
from orthrus.demo.report import Phase, phase_line, summary
from orthrus.demo.server import Server, free_port
from orthrus.demo.state import DemoState
from orthrus.demo.trace import TraceReader
from orthrus.demo.view import View, render
from orthrus.retrieval.passages import Passage, load_passages

T = TypeVar("T")
READY_SECONDS = 300.0
SAMPLE = 64
CHAT_SECONDS = 10.0
ANSWER_TOKENS = 48
WARM_UP_TOKENS = 8
PICTURE_WIDTH = 124
# A small budget keeps steps short, so that a chat's next token is never far away.
TOKEN_BUDGET = 256


@dataclass(frozen=True)
class DemoOptions:
    """What the user chose. `model` is a local folder or a Hugging Face id."""

    model: str
    port: int
    passages: int
    chats: int
    keep_vectors: Path | None
    save_picture: Path | None


def serve_command(model: str, port: int, trace: Path) -> list[str]:
    """The command line of the demo's server.

    Eager, since compilation would cost more than it saves in a minute; without prefix caching, since
    a passage or prompt seen in an earlier phase would be free in a later one.
    """
    return [
        *(sys.executable, "-m", "orthrus.cli", "serve", model),
        *("--host", "127.0.0.1", "--port", str(port), "--pooling", "last"),
        *("--max-model-len", "2048", "--max-num-batched-tokens", str(TOKEN_BUDGET)),
        *("--enforce-eager", "--no-enable-prefix-caching", "--trace-steps", str(trace)),
    ]


def server_environment(model: str) -> dict[str, str]:
    """Extra environment of the server: no usage reports, and no network at all for a local folder."""
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if Path(model).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    return environment


async def run_demo(options: DemoOptions, view: View) -> None:
    """Run the whole demo. Raises ServerError when the server fails; the server is gone on return."""
    port = free_port(options.port)
    with tempfile.TemporaryDirectory(prefix="orthrus-demo-") as name:
        folder = Path(name)
        trace = folder / "steps.jsonl"
        server = Server(
            serve_command(options.model, port, trace),
            port,
            folder / "server.log",
            server_environment(options.model),
        )
        try:
            await server.during(
                server.ready(
                    READY_SECONDS,
                    lambda waited: view.waiting(f"Starting orthrus serve {options.model}: {waited:.0f} s"),
                )
            )
            library = options.keep_vectors or folder / "vectors"
            await server.during(Show(options, view, server.url, TraceReader(trace), library).run())
        finally:
            view.waiting("Stopping the server")
            server.stop()


class Show:
    """The acts of the demo, on a server that is ready."""

    def __init__(self, options: DemoOptions, view: View, url: str, trace: TraceReader, library: Path) -> None:
        self._options = options
        self._view = view
        self._trace = trace
        self._library_folder = library
        self._state = DemoState()
        self._client = DemoClient(url, options.model, self._state)
        self._http = httpx.AsyncClient(base_url=url, trust_env=False)
        self._frame: RenderableType = Text()
        self._said: list[RenderableType] = []

    async def run(self) -> None:
        """Embeddings alone, chats alone, both together, three answers, and what was measured."""
        passages, lanes = load_passages(self._options.passages), self._options.chats
        async with self._http, aclosing(self._client):
            self._view.waiting("Warming up: one embedding and one chat, not measured")
            await self._client.embed([passages[0].content])
            await self._whole_answer(CHAT_PROMPTS[0], WARM_UP_TOKENS)

            sample = passages[:SAMPLE]
            embed, _ = await self._measure(
                "1/3 embeddings alone", lambda: self._client.embed_passages(sample), to_embed=len(sample)
            )
            chat, _ = await self._measure("2/3 chats alone", lambda: asyncio.sleep(CHAT_SECONDS), chats=lanes)
            both, vectors = await self._measure(
                "3/3 both together",
                lambda: self._client.embed_passages(passages),
                to_embed=len(passages),
                chats=lanes,
            )
            picture = self._frame
            await self._answer(Library(self._library_folder, passages, vectors), passages)
        for line in summary(embed, chat, both, lanes):
            self._say(Text(line))
        if self._options.save_picture:
            save_picture(self._options.save_picture, [picture, *self._said])
            self._view.say(Text(f"Picture: {self._options.save_picture}"))
        if self._options.keep_vectors:
            self._view.say(Text(f"Vectors: {self._options.keep_vectors}"))

    async def _measure(
        self, name: str, work: Callable[[], Awaitable[T]], *, to_embed: int = 0, chats: int = 0
    ) -> tuple[Phase, T]:
        """Do `work` beside `chats` lanes of streaming chats; the phase ends with the work."""
        state = self._state
        state.begin(name, to_embed=to_embed, chats=chats)
        before = await read_counters(self._http)
        async with self._watching(), self._client.chatting():
            result = await work()
            counters = (await read_counters(self._http)).since(before)
            phase = Phase(counters, state.embedded, tuple(state.gaps), tuple(state.first_tokens))
            self._view.update(state)
            self._frame = render(state)
        self._view.say(Text(phase_line(name, phase)))
        return phase, result

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        """Inside, the view follows the step trace and /metrics."""
        task = asyncio.ensure_future(self._watch())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        for tick in count():
            if tick % 4 == 0:
                self._state.add_reading(await read_counters(self._http))
            self._state.steps.extend(self._trace.read())
            self._view.update(self._state)
            await asyncio.sleep(0.25)

    async def _answer(self, library: Library, passages: list[Passage]) -> None:
        """Answer the shown questions from the library; a wrong retrieval is shown as such."""
        self._say(Text(HOW_CHOSEN, style="dim"))
        loaded = {passage.id for passage in passages}
        for question in SHOWN:
            hits = library.nearest((await self._client.embed([question.text]))[0])
            answer = await self._whole_answer(answer_prompt(question.text, hits), ANSWER_TOKENS)
            self._say(answered(question, hits, answer, in_library=question.passage_id in loaded))

    async def _whole_answer(self, prompt: str, max_tokens: int) -> str:
        """A streamed answer, shown as it grows."""
        answer = ""
        async for piece in self._client.stream(prompt, max_tokens):
            answer += piece
            self._view.waiting(" ".join(answer.split()))
        return " ".join(answer.split())

    def _say(self, text: RenderableType) -> None:
        self._said.append(text)
        self._view.say(text)


def save_picture(path: Path, parts: list[RenderableType]) -> None:
    """Write `parts`, one below the other, as an SVG."""
    console = Console(record=True, width=PICTURE_WIDTH, file=io.StringIO(), force_terminal=True)
    for part in parts:
        console.print(part, highlight=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    console.save_svg(str(path), title="orthrus demo")
