"""The HTTP side of the pipeline's process: requests go in, token ids come back to whoever asked for them."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orthrus.bench.peers.openvino.extra import AdapterError, bound
from orthrus.bench.peers.openvino.pipeline import work

GONE = "the pipeline's process has ended"
STOP_SECONDS = 10.0


@dataclass(eq=False)
class Generation:
    """One request. `tell` hears new token ids, then None at the end or the failure that ended it.

    It is called on a thread of the generator.
    """

    prompt: Sequence[int]
    settings: dict[str, Any]
    tell: Callable[[list[int] | Exception | None], None]
    number: int = 0


class Generator:
    """Starts the pipeline's process and talks to it. All methods are for one thread."""

    def __init__(
        self,
        folder: Path,
        cores: Sequence[int],
        properties: dict[str, Any],
        kv_gib: int,
        target: Callable[..., None] = work,
    ) -> None:
        """Returns once the pipeline is ready; AdapterError says why it could not be made."""
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        self._process = context.Process(target=target, args=(there, folder, properties, kv_gib), daemon=True)
        with bound(cores):
            self._process.start()
        there.close()
        try:
            wrong = self._connection.recv()
        except EOFError:
            wrong = GONE
        if wrong is not None:
            self._process.join()
            raise AdapterError(f"the generation pipeline of {folder} cannot be made: {wrong}")
        self._numbers = itertools.count(1)
        self._open: dict[int, Generation] = {}
        self._thread = threading.Thread(target=self._listen, daemon=True, name="generator")
        self._thread.start()

    def submit(self, generation: Generation) -> None:
        """Send a generation off; its `tell` hears all that follows."""
        generation.number = next(self._numbers)
        self._open[generation.number] = generation
        try:
            self._connection.send((generation.number, generation.prompt, generation.settings))
        except OSError:
            self._answer(generation.number, GONE)

    def cancel(self, generation: Generation) -> None:
        """Forget a generation, if it has not ended; its `tell` hears no more."""
        if self._open.pop(generation.number, None) is not None and self._process.is_alive():
            self._connection.send((generation.number, None, None))

    def close(self) -> None:
        """End the process; open generations are dropped."""
        self._process.terminate()
        self._process.join(STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._thread.join()
        self._connection.close()

    def _listen(self) -> None:
        try:
            while True:
                self._answer(*self._connection.recv())
        except (EOFError, ConnectionResetError):
            for number in list(self._open):
                self._answer(number, GONE)

    def _answer(self, number: int, news: list[int] | str | None) -> None:
        generation = self._open.get(number) if isinstance(news, list) else self._open.pop(number, None)
        if generation is not None:
            generation.tell(RuntimeError(news) if isinstance(news, str) else news)
