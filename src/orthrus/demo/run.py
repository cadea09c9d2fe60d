"""The demo from the server's start to its end."""

from __future__ import annotations

import asyncio
import io
import os
import re
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
from orthrus.demo.server import Server, ServerError, free_port
from orthrus.demo.state import DemoState
from orthrus.demo.trace import TraceReader
from orthrus.demo.view import View, render
from orthrus.retrieval.passages import Passage, load_passages

T = TypeVar("T")
READY_SECONDS = 300.0
SAMPLE = 32  # passages embedded alone, once before and once after the phase together
TOGETHER_SECONDS = 45.0
LEAST_PASSAGES = 64
CHAT_SECONDS = 10.0
ANSWER_TOKENS = 48
WARM_UP_TOKENS = 8
PICTURE_WIDTH = 124
# A small budget keeps steps short, so that a chat's next token is never far away.
TOKEN_BUDGET = 256
# Enough for this workload; vLLM's default claims nearly all memory, and fails where other programs use some.
KV_CACHE_BYTES = 2**30


@dataclass(frozen=True)
class DemoOptions:
    """What the user chose. `model` is a local folder or a Hugging Face id.

    Without a number of `passages`, all are embedded, or as many as the machine can in 45 s.
    """

    model: str
    port: int
    passages: int | None
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
        *("--kv-cache-memory-bytes", str(KV_CACHE_BYTES)),
        *("--enforce-eager", "--no-enable-prefix-caching", "--trace-steps", str(trace)),
    ]


def server_environment(model: str) -> dict[str, str]:
    """Extra environment of the server: no usage reports, and no network at all for a local folder."""
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if Path(model).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    return environment


async def run_demo(options: DemoOptions, view: View) -> None:
    """Run the whole demo. The server is gone on return.

    Raises ServerError when the server fails; then, and only then, its log is kept.
    """
    port = free_port(options.port)
    handle, log_name = tempfile.mkstemp(prefix="orthrus-demo-", suffix=".log")
    os.close(handle)
    log = Path(log_name)
    try:
        with tempfile.TemporaryDirectory(prefix="orthrus-demo-") as folder:
            await serve_and_show(options, view, port, Path(folder), log)
    except ServerError:
        raise
    except BaseException:
        log.unlink()
        raise
    log.unlink()


async def serve_and_show(options: DemoOptions, view: View, port: int, folder: Path, log: Path) -> None:
    """Start the server, wait for it, run the show, stop the server; `folder` takes the working files."""
    trace = folder / "steps.jsonl"
    command = serve_command(options.model, port, trace)
    server = Server(command, port, log, server_environment(options.model))

    def progress(waited: float) -> None:
        view.waiting(f"Starting orthrus serve: {waited:.0f} s")

    try:
        await server.during(server.ready(READY_SECONDS, progress))
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
        self._frame: RenderableType = Text()  # the view at half of the embeddings, for the picture
        self._said: list[RenderableType] = []

    async def run(self) -> None:
        """Embeddings alone, chats alone, both, embeddings again; three answers; what was measured."""
        passages, lanes = with_answers_first(load_passages(self._options.passages)), self._options.chats
        async with self._http, aclosing(self._client):
            self._view.waiting("Warming up: one embedding and one chat, not measured")
            await self._client.embed([passages[0].content])
            await self._whole_answer(CHAT_PROMPTS[0], WARM_UP_TOKENS)

            sample = passages[:SAMPLE]
            before, _ = await self._measure(
                "1/4 embeddings alone", lambda: self._client.embed_passages(sample), to_embed=len(sample)
            )
            if self._options.passages is None:
                passages = passages[: affordable(before)]
            chat, _ = await self._measure("2/4 chats alone", lambda: asyncio.sleep(CHAT_SECONDS), chats=lanes)
            both, vectors = await self._measure(
                "3/4 both together",
                lambda: self._client.embed_passages(passages),
                to_embed=len(passages),
                chats=lanes,
            )
            picture = self._frame
            after, _ = await self._measure(
                "4/4 embeddings alone again",
                lambda: self._client.embed_passages(sample),
                to_embed=len(sample),
            )
            await self._answer(Library(self._library_folder, passages, vectors), passages)
        self._say(Text("\n" + "\n".join(f"- {line}" for line in summary(before, chat, both, after, lanes))))
        if self._options.save_picture:
            save_picture(self._options.save_picture, [picture, *self._said])
            self._view.say(Text(f"\nPicture: {self._options.save_picture}"))
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
            if self._state.embedded <= self._state.to_embed / 2:
                self._frame = render(self._state)
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
            self._view.streaming(" ".join(answer.split()))
        return " ".join(answer.split())

    def _say(self, text: RenderableType) -> None:
        self._said.append(text)
        self._view.say(text)


def with_answers_first(passages: list[Passage]) -> list[Passage]:
    """The passages that the shown questions ask for, if they are among these, then the others."""
    asked = {question.passage_id for question in SHOWN}
    return sorted(passages, key=lambda passage: passage.id not in asked)


def affordable(alone: Phase) -> int:
    """How many passages take about TOGETHER_SECONDS at the speed of a phase; at least LEAST_PASSAGES."""
    return max(LEAST_PASSAGES, int(TOGETHER_SECONDS * alone.passages / alone.seconds))


def save_picture(path: Path, parts: list[RenderableType]) -> None:
    """Write `parts`, one below the other, as an SVG."""
    console = Console(record=True, width=PICTURE_WIDTH, file=io.StringIO(), force_terminal=True)
    for part in parts:
        console.print(part, highlight=False)
    svg = console.export_svg(title="orthrus demo")
    # Rich names web fonts; a picture must not depend on a network, and monospace is its fallback anyway.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg, encoding="utf-8")
