"""The emit stage of a step's embedding rows: incremental pooling, then the finished vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from orthrus.engine.checkpoint import recipe_in
from orthrus.engine.config import OrthrusConfig
from orthrus.engine.embedding import EmbeddingSpec
from orthrus.engine.prefix_reuse import rows_of
from orthrus.engine.prefix_sums import SumOrders
from orthrus.pooling.bank import PoolingBank, PrefixState
from orthrus.pooling.finishing import DenseLayer, finish_vectors
from orthrus.pooling.prefix_store import PrefixStore, boundary_states

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from vllm.config import VllmConfig
    from vllm.pooling_params import PoolingParams

    from orthrus.pooling.segments import Segments


class StepPooler:
    """Pooling state by request id over a PoolingBank with one slot per sequence of the engine."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        slots = vllm_config.scheduler_config.max_num_seqs
        self._config = OrthrusConfig.of(vllm_config)
        self._hidden_size = vllm_config.model_config.get_hidden_size()
        self._dense = _dense_layers(self._config, device)
        self._bank = PoolingBank(slots, self._hidden_size, device)
        self._kept_rows = rows_of(vllm_config, self._config)
        self._kept: PrefixStore | None = None
        self._free = list(range(slots))
        self._slots: dict[str, int] = {}
        self._specs: dict[str, EmbeddingSpec] = {}

    @property
    def open_requests(self) -> int:
        """Requests with pooling state; 0 when the engine is idle."""
        return len(self._slots)

    @property
    def open_slots(self) -> int:
        """Slots of the bank in use; as many as `open_requests`."""
        return self._bank.open_slots

    def release(self, req_id: str) -> None:
        """Drop a request's state, if it has any: finished, aborted or preempted."""
        slot = self._slots.pop(req_id, None)
        if slot is not None:
            del self._specs[req_id]
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
        whose prompt is complete, None for the others; the state of a complete one is freed. `orders` names
        states at block boundaries to start from and to keep.
        """
        orders = orders or SumOrders()
        for i, req_id in enumerate(req_ids):
            if starts[i] == 0 or req_id not in self._slots:
                self._open(req_id, params[i], int(starts[i]), int(prompt_lens[i]), orders.loads.get(req_id))
        slots = torch.tensor([self._slots[req_id] for req_id in req_ids])
        lengths_t = torch.as_tensor(lengths, dtype=torch.int64)
        starts_t = torch.as_tensor(starts, dtype=torch.int64)
        if orders.saves:
            self._keep(self._bank.segments(hidden, slots, lengths_t, starts_t), req_ids, orders)
        self._bank.update(hidden, slots, lengths_t, starts_t)
        done = [i for i in range(len(req_ids)) if starts[i] + lengths[i] >= prompt_lens[i]]
        vectors: list[torch.Tensor | None] = [None] * len(req_ids)
        if done:
            pooled = self._bank.finish(slots[done])
            specs = [self._specs[req_ids[i]] for i in done]
            finished = finish_vectors(
                pooled, self._dense, [spec.dimensions for spec in specs], [spec.normalize for spec in specs]
            )
            for i, vector in zip(done, finished.vectors, strict=True):
                vectors[i] = vector
                self.release(req_ids[i])
            for k in finished.nonfinite:
                # The front end turns it into an error; a norm that overflowed would look like a zero vector.
                finished.vectors[k].fill_(torch.nan)
        return vectors

    def _keep(self, step: Segments, req_ids: Sequence[str], orders: SumOrders) -> None:
        if self._kept is None:
            self._kept = PrefixStore(self._kept_rows, self._hidden_size, self._bank.device)
        index = {req_id: i for i, req_id in enumerate(req_ids)}
        saves = sorted((index[req_id], end, row) for req_id, end, row in orders.saves)
        owners, ends, rows = (torch.tensor(column) for column in zip(*saves, strict=True))
        self._kept.save(rows, boundary_states(self._bank, step, owners, ends))

    def _open(
        self, req_id: str, params: PoolingParams, start: int, prompt_len: int, kept_row: int | None
    ) -> None:
        self.release(req_id)
        spec = EmbeddingSpec.of(params, self._config)
        prefix = None
        if kept_row is not None and self._kept is not None:
            prefix = self._kept.load(kept_row, spec.head, start)
        elif start:
            # Without a kept state only the last head skips a prefix, whose hidden states it does not need.
            prefix = PrefixState(spec.head, start, torch.zeros(self._hidden_size, device=self._bank.device))
        slot = self._free.pop()
        self._bank.open(slot, spec.head, prompt_len, prefix)
        self._slots[req_id] = slot
        self._specs[req_id] = spec


def _dense_layers(config: OrthrusConfig, device: torch.device) -> list[DenseLayer]:
    recipe = recipe_in(config.checkpoint.folder) if config.checkpoint else None
    return [DenseLayer(spec, device) for spec in recipe.dense] if recipe else []
