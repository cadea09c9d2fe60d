"""vLLM's model runner with mixed steps: embedding rows and generation rows in one forward pass.

The forward pass is vLLM's, untouched: every item is a row of one flattened batch (paper, section 3.2). Only
what happens to the rows afterwards differs: the generation slice goes to the LM head and the sampler,
the embedding slice to the incremental pooler.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from orthrus.engine.batch import MixedInputBatch
from orthrus.engine.compat import AsyncModelRunnerOutput, GPUModelRunner, ModelRunnerOutput
from orthrus.engine.config import OrthrusConfig
from orthrus.engine.embedding import TOKEN_TASK
from orthrus.engine.pooler import StepPooler
from orthrus.engine.prefix_reuse import ORDERS
from orthrus.engine.stale_blocks import fresh_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from orthrus.engine.compat import CachedRequestState, SchedulerOutput

Vectors = list[torch.Tensor | None]


class MixedModelRunner(GPUModelRunner):
    """Mixin over vLLM's V1 runners (v1/worker/gpu_model_runner.py); see `adopt`."""

    pooler: StepPooler
    _may_hold_nan = False
    _has_queue = False
    _late: ModelRunnerOutput | AsyncModelRunnerOutput | None = None
    input_batch: MixedInputBatch

    @classmethod
    def adopt(cls, runner: GPUModelRunner) -> None:
        """Turn a runner that vLLM's worker has just built into one of this class."""
        runner.__class__ = cls
        runner.input_batch.__class__ = MixedInputBatch
        runner.pooler = StepPooler(runner.vllm_config, runner.device)
        runner._has_queue = runner.vllm_config.max_concurrent_batches > 1

    def may_reinitialize_input_batch(self, *args: Any, **kwargs: Any) -> None:
        super().may_reinitialize_input_batch(*args, **kwargs)
        self.input_batch.__class__ = MixedInputBatch

    def get_supported_tasks(self) -> tuple[Any, ...]:
        buffered = OrthrusConfig.of(self.vllm_config).pooling_buffer_tokens
        return (*super().get_supported_tasks(), "embed", *([TOKEN_TASK] if buffered else []))

    def _on_request_state_removed(self, req_id: str, req_state: CachedRequestState | None) -> None:
        super()._on_request_state_removed(req_id, req_state)
        self.pooler.release(req_id)

    def _update_states(self, scheduler_output: SchedulerOutput) -> Callable[..., Any] | None:
        self._sum_orders = getattr(scheduler_output, ORDERS, None)
        # A preempted embedding loses its KV blocks and is computed again from its first token.
        for req_id in scheduler_output.preempted_req_ids or ():
            self.pooler.release(req_id)
        if self._may_hold_nan:
            self._zero_block_ids(fresh_blocks(scheduler_output, self.cache_config.block_size))
        result: Callable[..., Any] | None = super()._update_states(scheduler_output)
        if self._sum_orders is not None:
            for req_id, row in self._sum_orders.loads.items():
                state = self.requests[req_id]
                start, length = state.num_computed_tokens, state.num_prompt_tokens
                self.pooler.open(req_id, state.pooling_params, start, length, row)
        return result

    def _may_reorder_batch(self, scheduler_output: SchedulerOutput) -> None:
        super()._may_reorder_batch(scheduler_output)
        if self.input_batch.pooling_params:
            self.input_batch.sort_rows(scheduler_output.num_scheduled_tokens, self.reorder_batch_threshold)

    def _prepare_inputs(
        self, scheduler_output: SchedulerOutput, num_scheduled_tokens: np.ndarray
    ) -> tuple[torch.Tensor, Any, int]:
        logits_indices, spec_decode_metadata, max_sampled = super()._prepare_inputs(
            scheduler_output, num_scheduled_tokens
        )
        batch = self.input_batch
        if not batch.pooling_params:
            return logits_indices, spec_decode_metadata, max_sampled
        generation = batch.num_generation_rows
        self.discard_request_mask.np[generation : batch.num_reqs] = False
        # With no generation row, vLLM's own exit for pooling models skips the LM head and the sampler.
        self.is_pooling_model = generation == 0
        return logits_indices[:generation], spec_decode_metadata, max_sampled

    def set_active_loras(
        self,
        input_batch: MixedInputBatch,
        num_scheduled_tokens: np.ndarray,
        num_sampled_tokens: np.ndarray | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if num_sampled_tokens is not None and input_batch.pooling_params:
            num_sampled_tokens[input_batch.num_generation_rows :] = 0
        super().set_active_loras(input_batch, num_scheduled_tokens, num_sampled_tokens, *args, **kwargs)

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().execute_model(*args, **kwargs)
        finally:
            self.is_pooling_model = False

    def _pool(
        self,
        hidden_states: torch.Tensor,
        num_scheduled_tokens: int,
        num_scheduled_tokens_np: np.ndarray,
        kv_connector_output: Any,
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        batch = self.input_batch
        batch.prev_sampled_token_ids = None
        batch.prev_req_id_to_index = None
        output = ModelRunnerOutput(
            req_ids=batch.req_ids.copy(),
            req_id_to_index=batch.req_id_to_index.copy(),
            kv_connector_output=kv_connector_output,
        )
        vectors = self._pool_embedding_slice(hidden_states)
        answer: ModelRunnerOutput | AsyncModelRunnerOutput = output
        if self.device.type == "cpu":
            output.pooler_output = vectors
        else:
            answer = PooledOutput(output, vectors)
        if not self._has_queue:
            return answer
        # With batches in flight vLLM samples after every step of a generative engine and only reads that
        # answer (v1/engine/core.py, `step_with_batch_queue`).
        self._late = answer
        return None

    def sample_tokens(self, grammar_output: Any) -> Any:
        late, self._late = self._late, None
        if late is not None:
            return late
        state = self.execute_model_state
        vectors: Vectors = []
        if state is not None and self.input_batch.pooling_params:
            vectors = self._pool_embedding_slice(state.hidden_states)
        with self._discarded_rows_keep_their_generators():
            output = super().sample_tokens(grammar_output)
        if not vectors:
            return output
        if isinstance(output, ModelRunnerOutput) and self.device.type == "cpu":
            return add_embedding_rows(output, vectors)
        return PooledOutput(output, vectors)

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._bookkeeping_sync(*args, **kwargs)
        # Under asynchronous scheduling the next step would look for sampled tokens of these rows.
        previous = self.input_batch.prev_req_id_to_index
        if previous:
            for req_id in self.input_batch.pooling_params:
                previous.pop(req_id, None)
        return result

    def _pool_embedding_slice(self, hidden_states: torch.Tensor) -> Vectors:
        batch = self.input_batch
        rows = slice(batch.num_generation_rows, batch.num_reqs)
        bounds = self.query_start_loc.np[rows.start : rows.stop + 1]
        vectors = self.pooler.step(
            hidden_states[int(bounds[0]) : int(bounds[-1])],
            req_ids=batch.req_ids[rows],
            params=[batch.pooling_params[req_id] for req_id in batch.req_ids[rows]],
            lengths=bounds[1:] - bounds[:-1],
            starts=batch.num_computed_tokens_cpu[rows],
            prompt_lens=batch.num_prompt_tokens[rows],
            orders=self._sum_orders,
        )
        if self.device.type == "cpu":
            self._may_hold_nan |= any(v is not None and not bool(v.isfinite().all()) for v in vectors)
        return vectors

    @contextmanager
    def _discarded_rows_keep_their_generators(self) -> Iterator[None]:
        """Keep seeded rows whose sample is thrown away from drawing.

        vLLM lets the row of a partial prefill draw and rewinds its generator afterwards, which a CPU
        generator cannot do: there, a seeded request with a chunked prompt would kill the engine.
        """
        generators = self.input_batch.generators
        held = {}
        if generators:
            held = {row: generators[row] for row in list(generators) if self.discard_request_mask.np[row]}
            for row in held:
                del generators[row]
        try:
            yield
        finally:
            generators.update(held)


def add_embedding_rows(output: ModelRunnerOutput, vectors: Vectors) -> ModelRunnerOutput:
    """Extend a step's generation output by its embedding rows (`vectors`: None where not finished)."""
    generation = len(output.sampled_token_ids)
    output.sampled_token_ids = [*output.sampled_token_ids, *([] for _ in vectors)]
    output.pooler_output = [*([None] * generation), *vectors]
    return output


class PooledOutput(AsyncModelRunnerOutput):
    """A step's output whose vectors are still on their way from the device to the host."""

    def __init__(self, output: ModelRunnerOutput | AsyncModelRunnerOutput, vectors: Vectors) -> None:
        self._output = output
        self._vectors: Vectors = [v if v is None else v.to("cpu", non_blocking=True) for v in vectors]
        self._copied = torch.cuda.Event(blocking=True)
        self._copied.record()

    def get_output(self) -> ModelRunnerOutput:
        output = self._output
        if isinstance(output, AsyncModelRunnerOutput):
            output = output.get_output()
        self._copied.synchronize()
        return add_embedding_rows(output, self._vectors)
