"""GenAI's continuous batching pipeline on a thread of its own; token ids go to whoever asked for them."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from orthrus.bench.peers.openvino.extra import load


@dataclass(eq=False)
class Generation:
    """One request. `tell` hears new token ids, then None at the end or the exception that ended it.

    It is called on the pipeline's thread. `cancelled` may be set by anyone at any time.
    """

    prompt: Sequence[int]
    settings: dict[str, Any]
    tell: Callable[[list[int] | Exception | None], None]
    cancelled: bool = False
    handle: Any = field(default=None, repr=False)


class Generator:
    """Steps the pipeline while anything is open, and sleeps otherwise."""

    def __init__(self, folder: Path, cores: Sequence[int], properties: dict[str, Any], kv_gib: int) -> None:
        """`folder` holds the exported model and tokenizer; returns once the pipeline is ready."""
        self._queue: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready, folder, cores, properties, kv_gib), daemon=True, name="generator"
        )
        self._thread.start()
        ready.result()

    def submit(self, generation: Generation) -> None:
        """Queue a generation; its `tell` hears all that follows."""
        self._queue.put(generation)

    def close(self) -> None:
        """End the thread; open generations are dropped."""
        self._queue.put(None)
        self._thread.join()

    def _run(
        self,
        ready: Future[None],
        folder: Path,
        cores: Sequence[int],
        properties: dict[str, Any],
        kv_gib: int,
    ) -> None:
        try:
            os.sched_setaffinity(0, cores)
            self._genai = load("openvino_genai")
            self._tensor = load("openvino").Tensor
            scheduler = self._genai.SchedulerConfig()
            scheduler.cache_size = kv_gib
            self._pipeline = self._genai.ContinuousBatchingPipeline(
                str(folder), scheduler, "CPU", properties, {}
            )
        except Exception as error:  # noqa: BLE001  (whatever it is, the starter must hear it)
            ready.set_exception(error)
            return
        ready.set_result(None)
        running: list[Generation] = []
        next_id = 0
        while True:
            try:
                arrived = self._queue.get(block=not running)
            except queue.Empty:
                running = self._step(running)
                continue
            if arrived is None:
                return
            next_id += 1
            if self._admit(arrived, next_id):
                running.append(arrived)

    def _admit(self, generation: Generation, number: int) -> bool:
        config = self._pipeline.get_config()  # the checkpoint's own, with its end-of-text token
        config.update_generation_config(**generation.settings)
        ids = self._tensor(np.asarray([generation.prompt], dtype=np.int64))
        try:
            generation.handle = self._pipeline.add_request(number, ids, config)
        except RuntimeError as error:
            generation.tell(error)
            return False
        return True

    def _step(self, running: list[Generation]) -> list[Generation]:
        """One iteration of the pipeline; returns what is still open."""
        gone = [generation for generation in running if generation.cancelled]
        for generation in gone:
            generation.handle.cancel()  # this step frees its blocks
        running = [generation for generation in running if generation not in gone]
        try:
            self._pipeline.step()
        except RuntimeError as error:
            for generation in running:
                generation.handle.cancel()
                generation.tell(error)
            return []
        return [generation for generation in running if self._tell(generation)]

    def _tell(self, generation: Generation) -> bool:
        """Pass on what is new; returns whether more will come."""
        states = self._genai.GenerationStatus
        # Asked before reading: what came with the end is then read too.
        status = generation.handle.get_status()
        while generation.handle.can_read():
            for output in generation.handle.read().values():
                generation.tell(list(output.generated_ids))
        if status == states.RUNNING:
            return True
        if status == states.IGNORED:
            generation.tell(RuntimeError("the prompt does not fit into the KV cache"))
        else:
            generation.tell(None)
        return False
