"""GenAI's continuous batching pipeline in a process of its own.

`step()` keeps Python's interpreter lock for the whole of its computation: in the HTTP process, tokens of
8 streams reached their clients seconds late, and new requests were not even read.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from orthrus.bench.peers.openvino.extra import load

Handles = dict[int, Any]


def work(connection: Connection, folder: Path, properties: dict[str, Any], kv_gib: int) -> None:
    """Serve `connection` until it ends. First goes out None (ready), or what was wrong as a string.

    In come (number, prompt, settings) for a generation and (number, None, None) to cancel one; out go
    (number, token ids), then (number, None) at its end, or (number, string) for the failure that ended it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the HTTP process, which ends this one
    try:
        pipeline = Pipeline(connection, folder, properties, kv_gib)
    except Exception as error:  # noqa: BLE001  (whatever it is, the starter must hear it)
        connection.send(f"{type(error).__name__}: {error}")
        return
    connection.send(None)
    pipeline.run()


class Pipeline:
    """Steps the pipeline while anything is open, and sleeps otherwise."""

    def __init__(self, connection: Connection, folder: Path, properties: dict[str, Any], kv_gib: int) -> None:
        self._connection = connection
        self._genai = load("openvino_genai")
        self._tensor = load("openvino").Tensor
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = kv_gib
        self._pipeline = self._genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties, {})

    def run(self) -> None:
        """Until the other side of the connection is closed."""
        handles: Handles = {}
        try:
            while True:
                while not handles or self._connection.poll():
                    number, prompt, settings = self._connection.recv()
                    self._take(number, prompt, settings, handles)
                self._step(handles)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return

    def _take(
        self, number: int, prompt: Sequence[int] | None, settings: dict[str, Any] | None, handles: Handles
    ) -> None:
        if prompt is None or settings is None:
            if number in handles:
                handles.pop(number).cancel()
                self._pipeline.step()  # frees its blocks, also when nothing else is open
                self._tell(handles)
            return
        config = self._pipeline.get_config()  # the checkpoint's own, with its end-of-text token
        config.update_generation_config(**settings)
        ids = self._tensor(np.asarray([prompt], dtype=np.int64))
        try:
            handles[number] = self._pipeline.add_request(number, ids, config)
        except RuntimeError as error:
            self._connection.send((number, str(error)))

    def _step(self, handles: Handles) -> None:
        try:
            self._pipeline.step()
        except RuntimeError as error:
            for number, handle in handles.items():
                handle.cancel()
                self._connection.send((number, str(error)))
            handles.clear()
        self._tell(handles)

    def _tell(self, handles: Handles) -> None:
        """Send what is new; generations that have ended leave `handles`."""
        states = self._genai.GenerationStatus
        for number, handle in list(handles.items()):
            # Asked before reading: what came with the end is then read too.
            status = handle.get_status()
            while handle.can_read():
                for output in handle.read().values():
                    self._connection.send((number, list(output.generated_ids)))
            if status != states.RUNNING:
                ignored = "the prompt does not fit into the KV cache"
                self._connection.send((number, ignored if status == states.IGNORED else None))
                del handles[number]
