"""The emit stage of a step's embedding rows: incremental pooling, then the finished vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from orthrus.engine.config import OrthrusConfig
from orthrus.engine.embedding import EmbeddingSpec
from orthrus.pooling.bank import PoolingBank, PrefixState

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from vllm.config import VllmConfig
    from vllm.pooling_params import PoolingParams


class StepPooler:
    """Pooling state by request id over a PoolingBank with one slot per sequence of the engine."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        slots = vllm_config.scheduler_config.max_num_seqs
        self._config = OrthrusConfig.of(vllm_config)
        self._hidden_size = vllm_config.model_config.get_hidden_size()
        self._bank = PoolingBank(slots, self._hidden_size, device)
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
    ) -> list[torch.Tensor | None]:
        """Take in the embedding slice `hidden` [n, hidden_size] of one step, k requests in row order.

        `lengths`, `starts` and `prompt_lens` are integers [k]. Returns a float32 vector for each request
        whose prompt is complete, None for the others; the state of a complete one is freed.
        """
        for i, req_id in enumerate(req_ids):
            if starts[i] == 0 or req_id not in self._slots:
                self._open(req_id, params[i], int(starts[i]), int(prompt_lens[i]))
        slots = torch.tensor([self._slots[req_id] for req_id in req_ids])
        self._bank.update(
            hidden,
            slots,
            torch.as_tensor(lengths, dtype=torch.int64),
            torch.as_tensor(starts, dtype=torch.int64),
        )
        done = [i for i in range(len(req_ids)) if starts[i] + lengths[i] >= prompt_lens[i]]
        vectors: list[torch.Tensor | None] = [None] * len(req_ids)
        if done:
            pooled = self._bank.finish(slots[done])
            for i, vector in zip(done, pooled, strict=True):
                vectors[i] = finish_vector(vector, self._specs[req_ids[i]])
                self.release(req_ids[i])
        return vectors

    def _open(self, req_id: str, params: PoolingParams, start: int, prompt_len: int) -> None:
        self.release(req_id)
        spec = EmbeddingSpec.of(params, self._config)
        prefix = None
        if start:
            # Only heads that need no hidden state of the prefix are allowed to skip it (EmbeddingSpec).
            prefix = PrefixState(spec.head, start, torch.zeros(self._hidden_size, device=self._bank.device))
        slot = self._free.pop()
        self._bank.open(slot, spec.head, prompt_len, prefix)
        self._slots[req_id] = slot
        self._specs[req_id] = spec


def finish_vector(vector: torch.Tensor, spec: EmbeddingSpec) -> torch.Tensor:
    """Truncate to the asked dimensions, then scale to length 1 (in that order, so that the norm is 1)."""
    if spec.dimensions is not None:
        vector = vector[: spec.dimensions]
    if spec.normalize:
        vector = torch.nn.functional.normalize(vector, dim=-1)
    return vector
