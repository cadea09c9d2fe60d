"""The emit stage of a step's embedding rows: incremental pooling, then the finished vectors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from orthrus.engine import answers
from orthrus.engine.checkpoint import recipe_in
from orthrus.engine.config import OrthrusConfig
from orthrus.engine.embedding import EmbeddingSpec
from orthrus.engine.prefix_reuse import rows_of
from orthrus.engine.prefix_sums import SumOrders
from orthrus.pooling.bank import PoolingBank, PrefixState
from orthrus.pooling.buffered import BufferedHead, load_function
from orthrus.pooling.errors import PoolingCapacityError
from orthrus.pooling.finishing import DenseLayer
from orthrus.pooling.heads import Head
from orthrus.pooling.prefix_store import PrefixStore, boundary_states
from orthrus.pooling.spans import SpanSums

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from vllm.config import VllmConfig
    from vllm.pooling_params import PoolingParams

    from orthrus.pooling.segments import Segments

logger = logging.getLogger("vllm.orthrus")


class StepPooler:
    """Pooling state by request id: a PoolingBank with one slot per sequence of the engine, and span sums."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        slots = vllm_config.scheduler_config.max_num_seqs
        self._config = OrthrusConfig.of(vllm_config)
        self._hidden_size = vllm_config.model_config.get_hidden_size()
        self._dense = _dense_layers(self._config, device)
        buffered = _buffered_head(self._config, vllm_config.model_config.dtype)
        self._bank = PoolingBank(slots, self._hidden_size, device, buffered)
        self._kept_rows = rows_of(vllm_config, self._config)
        self._kept: PrefixStore | None = None
        self._free = list(range(slots))
        self._slots: dict[str, int] = {}
        self._spans: dict[str, SpanSums] = {}
        self._lost: set[str] = set()
        self._specs: dict[str, EmbeddingSpec] = {}
        logger.info(
            "Pooling state: %.1f MiB for %d requests%s",
            self._bank.memory_bytes / 2**20,
            slots,
            f", a buffer of {buffered.max_tokens} tokens for {buffered.name} included" if buffered else "",
        )

    @property
    def open_requests(self) -> int:
        """Requests with pooling state; 0 when the engine is idle."""
        return len(self._specs)

    @property
    def open_slots(self) -> int:
        """Slots of the bank in use, and documents with spans; as many as `open_requests`."""
        return self._bank.open_slots + len(self._spans) + len(self._lost)

    def release(self, req_id: str) -> None:
        """Drop a request's state, if it has any: finished, aborted or preempted."""
        if self._specs.pop(req_id, None) is None:
            return
        self._spans.pop(req_id, None)
        self._lost.discard(req_id)
        slot = self._slots.pop(req_id, None)
        if slot is not None:
            self._bank.close(slot)
            self._free.append(slot)

    @torch.inference_mode()
    def step(
        self,
        hidden: torch.Tensor,
        *,
        req_ids: Sequence[str],
        params: Sequence[PoolingParams],
        lengths: np.ndarray[Any, Any],
        starts: np.ndarray[Any, Any],
        prompt_lens: np.ndarray[Any, Any],
        orders: SumOrders | None = None,
    ) -> list[torch.Tensor | None]:
        """Take in the embedding slice `hidden` [n, hidden_size] of one step, k requests in row order.

        `lengths`, `starts` and `prompt_lens` are integers [k]. Returns a float32 vector for each request
        whose prompt is complete (a matrix for spans and token-level output), None for the others; the
        state of a complete one is freed. `orders` names states at block boundaries to keep.
        """
        orders = orders or SumOrders()
        for i, req_id in enumerate(req_ids):
            if starts[i] == 0 or req_id not in self._specs:
                self.open(req_id, params[i], int(starts[i]), int(prompt_lens[i]))
        lengths_t = torch.as_tensor(lengths, dtype=torch.int64)
        starts_t = torch.as_tensor(starts, dtype=torch.int64)
        if len(self._slots) == len(self._specs):
            self._take_in(hidden, list(req_ids), lengths_t, starts_t, orders)
        else:
            self._take_in_apart(hidden, req_ids, lengths_t, starts_t, orders)
        done = [i for i in range(len(req_ids)) if starts[i] + lengths[i] >= prompt_lens[i]]
        vectors: list[torch.Tensor | None] = [None] * len(req_ids)
        for i, vector in self._answers([(i, req_ids[i]) for i in done]):
            vectors[i] = vector
        for i in done:
            self.release(req_ids[i])
        return vectors

    def _take_in(
        self,
        hidden: torch.Tensor,
        req_ids: list[str],
        lengths: torch.Tensor,
        starts: torch.Tensor,
        orders: SumOrders,
    ) -> None:
        slots = torch.tensor([self._slots[req_id] for req_id in req_ids], dtype=torch.int64)
        if orders.saves:
            self._keep(self._bank.segments(hidden, slots, lengths, starts), req_ids, orders)
        self._bank.update(hidden, slots, lengths, starts)

    def _take_in_apart(
        self,
        hidden: torch.Tensor,
        req_ids: Sequence[str],
        lengths: torch.Tensor,
        starts: torch.Tensor,
        orders: SumOrders,
    ) -> None:
        """Rows of documents with spans go to their own sums, the others to the bank."""
        pieces = list(hidden.split(lengths.tolist()))
        for req_id, piece, start in zip(req_ids, pieces, starts.tolist(), strict=True):
            if req_id in self._spans:
                self._spans[req_id].update(piece, start)
        banked = [i for i, req_id in enumerate(req_ids) if req_id in self._slots]
        if banked:
            rows = torch.cat([pieces[i] for i in banked])
            self._take_in(rows, [req_ids[i] for i in banked], lengths[banked], starts[banked], orders)

    def _answers(self, done: list[tuple[int, str]]) -> list[tuple[int, torch.Tensor]]:
        found, streaming = [], []
        for i, req_id in done:
            spec = self._specs[req_id]
            if req_id in self._lost:
                found.append((i, answers.unanswerable()))
            elif req_id in self._spans:
                found.append((i, answers.matrix_of(self._spans[req_id].finish(), self._dense, spec)))
            elif spec.head is Head.BUFFERED:
                found.append((i, answers.buffered_answer(self._bank, self._slots[req_id], req_id, spec)))
            else:
                streaming.append((i, req_id))
        if streaming:
            pooled = self._bank.finish(torch.tensor([self._slots[req_id] for _, req_id in streaming]))
            specs = [self._specs[req_id] for _, req_id in streaming]
            vectors = answers.vectors_of(pooled, self._dense, specs)
            found += [(i, vector) for (i, _), vector in zip(streaming, vectors, strict=True)]
        return found

    def _keep(self, step: Segments, req_ids: Sequence[str], orders: SumOrders) -> None:
        if self._kept is None:
            self._kept = PrefixStore(self._kept_rows, self._hidden_size, self._bank.device)
        index = {req_id: i for i, req_id in enumerate(req_ids)}
        saves = sorted(
            (index[req_id], end, row) for req_id, kept in orders.saves.items() for end, row in kept
        )
        owners, ends, rows = (torch.tensor(column) for column in zip(*saves, strict=True))
        self._kept.save(rows, boundary_states(self._bank, step, owners, ends))

    @torch.inference_mode()
    def open(
        self,
        req_id: str,
        params: PoolingParams,
        start: int,
        prompt_len: int,
        kept_row: int | None = None,
    ) -> None:
        """Begin a request of `prompt_len` tokens at position `start`, with the state kept in `kept_row`.

        `step` does it where there is no such state. Where there is, it must be before the forward pass: the
        row may be another's by the time a discarded step is computed again.
        """
        self.release(req_id)
        spec = EmbeddingSpec.of(params, self._config)
        self._specs[req_id] = spec
        if spec.spans:
            self._spans[req_id] = SpanSums(spec.spans, spec.head, self._hidden_size, self._bank.device)
            return
        prefix = None
        if kept_row is not None and self._kept is not None:
            prefix = self._kept.load(kept_row, spec.head, start)
        elif start:
            # Without a kept state only the last head skips a prefix, whose hidden states it does not need.
            prefix = PrefixState(spec.head, start, torch.zeros(self._hidden_size, device=self._bank.device))
        try:
            self._bank.open(self._free[-1], spec.head, prompt_len, prefix)
        except PoolingCapacityError as error:
            # The scheduler's own count should have kept it waiting; only this request pays if it did not.
            logger.error("Request %s: %s", req_id, error)
            self._lost.add(req_id)
            return
        self._slots[req_id] = self._free.pop()


def _dense_layers(config: OrthrusConfig, device: torch.device) -> list[DenseLayer]:
    recipe = recipe_in(config.checkpoint.folder) if config.checkpoint else None
    return [DenseLayer(spec, device) for spec in recipe.dense] if recipe else []


def _buffered_head(config: OrthrusConfig, dtype: torch.dtype) -> BufferedHead | None:
    if not config.pooling_buffer_tokens:
        return None
    path = config.pooling_function
    function = load_function(path) if path else None
    return BufferedHead(function, path or "token-level output", config.pooling_buffer_tokens, dtype)
