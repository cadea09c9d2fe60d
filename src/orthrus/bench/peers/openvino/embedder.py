"""Mean-pooled, normalised vectors from an exported model, one request after another.

GenAI's TextEmbeddingPipeline takes text only, and leaves `position_ids` of an exported decoder unset: NaN, or
another vector at every call. A benchmark sends token ids, so the runtime runs the model, positions set.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from orthrus.bench.peers.openvino.extra import AdapterError, bound, load

Floats = npt.NDArray[np.float32]


def model_inputs(batch: Sequence[Sequence[int]], names: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
    """What a model with inputs `names` is given for a batch, each [n, longest] int64, padded on the right.

    Raises AdapterError for an input that is none of the three an exported text model has.
    """
    longest = max(map(len, batch))
    ids = np.zeros((len(batch), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(batch):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    known = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    unknown = set(names) - set(known)
    if unknown:
        raise AdapterError(f"the embedding model has inputs {sorted(unknown)}; known: {', '.join(known)}")
    return {name: known[name] for name in names}


def pooled(hidden: Floats, batch: Sequence[Sequence[int]]) -> Floats:
    """Mean of each row's own states, of length one: [n, longest, d] -> [n, d]."""
    means = [hidden[row, : len(tokens)].mean(axis=0) for row, tokens in enumerate(batch)]
    vectors = np.stack(means).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


class Model:
    """The exported encoder, compiled for one request at a time."""

    def __init__(self, folder: Path, properties: dict[str, Any]) -> None:
        """`folder` holds openvino_model.xml."""
        core = load("openvino").Core()
        served = {key: value for key, value in properties.items() if key != "KV_CACHE_PRECISION"}
        self._request = core.compile_model(
            folder / "openvino_model.xml", "CPU", served
        ).create_infer_request()
        self._names = [port.any_name for port in self._request.model_inputs]

    def embed(self, batch: Sequence[Sequence[int]]) -> Floats:
        """Vectors [n, d] float32 of token-id sequences, none of them empty."""
        self._request.infer(model_inputs(batch, self._names))
        return pooled(self._request.get_output_tensor(0).data, batch)


_served: list[Any] = []
"""The model of an embedder's process, once it has started."""


def _start(make: Callable[..., Any], folder: Path, properties: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the HTTP process, which ends this one
    _served.append(make(folder, properties))


def _embed(batch: Sequence[Sequence[int]]) -> Floats:
    vectors: Floats = _served[0].embed(batch)
    return vectors


def _ready() -> None:
    """Runs once the model is compiled."""


class Embedder:
    """The model in a process of its own, bound to `cores`; requests wait their turn, in order."""

    def __init__(
        self,
        folder: Path,
        cores: Sequence[int],
        properties: dict[str, Any],
        make: Callable[..., Any] = Model,
    ) -> None:
        """Returns once the model is compiled; AdapterError when it cannot be (the process has said why)."""
        self._pool = ProcessPoolExecutor(
            1, get_context("spawn"), initializer=_start, initargs=(make, folder, properties)
        )
        try:
            with bound(cores):
                self._pool.submit(_ready).result()
        except BrokenProcessPool as error:
            raise AdapterError(f"the embedding model of {folder} cannot be loaded") from error

    def submit(self, batch: Sequence[Sequence[int]]) -> Future[Floats]:
        """A future of the vectors [n, d] float32 of token-id sequences, none of them empty."""
        return self._pool.submit(_embed, batch)

    def close(self) -> None:
        """Drop what waits, and end the process."""
        self._pool.shutdown(cancel_futures=True)
