"""The scheduler: an ordering layer over vLLM's own (paper, section 4; vllm/v1/core/sched/scheduler.py).

Each step it shows the two kinds of work to a policy, lets vLLM's `schedule()` carry out the plan, and
settles the policy on what was really scheduled. A plan reaches vLLM in two ways: the waiting queue is
swapped for one that holds the planned requests in order, and `_reserve_prefill_lookahead`, which vLLM
asks for every request just before it allocates, caps each request at its granted tokens. While no
embedding is in the system, vLLM's `schedule()` runs as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orthrus.engine.admission import Admission
from orthrus.engine.compat import AsyncScheduler, PauseState, RequestStatus, Scheduler
from orthrus.engine.config import OrthrusConfig
from orthrus.engine.embedding import EmbeddingSpec
from orthrus.engine.steps import StepRecord, StepRecorder
from orthrus.engine.waiting import StepQueue, WaitingByKind, kind_of
from orthrus.policy.options import PolicyOptions
from orthrus.policy.registry import make
from orthrus.policy.work import Kind, Plan, StepView, WorkItem

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from orthrus.policy.queues import KindQueue


class InFlightThenWaiting:
    """The WorkQueue of one kind: requests that run already, then those that wait."""

    def __init__(self, kind: Kind, in_flight: list[WorkItem], waiting: KindQueue) -> None:
        self._kind = kind
        self._in_flight = sorted(in_flight, key=lambda item: item.order)
        self._waiting = waiting
        self.remaining = sum(item.remaining for item in in_flight) + waiting.remaining

    def __iter__(self) -> Iterator[WorkItem]:
        yield from self._in_flight
        yield from self._waiting


class MixedScheduling(Scheduler):
    """Mixin over vLLM's Scheduler and AsyncScheduler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = OrthrusConfig.of(self.vllm_config)
        self.waiting = WaitingByKind(self.policy)
        self.mix_policy = make(config.policy, PolicyOptions(**config.policy_options))
        self._config = config
        self._embeddings: set[str] = set()
        self._grants: dict[str, int] | None = None
        self._run_decodes = True
        self._stuck: Kind | None = None
        self._recorder = StepRecorder(config, self.parallel_config.data_parallel_index)

    def add_request(self, request: Request) -> None:
        if request.pooling_params is not None:
            self._embeddings.add(request.request_id)
            if not EmbeddingSpec.of(request.pooling_params, self._config).may_read_prefix_cache:
                request.skip_reading_prefix_cache = True
        super().add_request(request)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._embeddings.discard(request.request_id)
        self._real_waiting().forget(request.request_id)
        return super()._free_request(request, *args, **kwargs)

    def _real_waiting(self) -> WaitingByKind:
        waiting: WaitingByKind = self.waiting
        return waiting

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        waiting = self._real_waiting()
        waiting.promote(self._handle_blocked_waiting_request, self.deferred_waiting)
        if not self._embeddings or self._pause_state == PauseState.PAUSED_ALL:
            return self._schedule_generation(throttle_prefills)
        queues, decodes, adapters = self._running_work()
        view = StepView(
            budget=max(0, self.max_num_scheduled_tokens - decodes),
            decode_tokens=decodes,
            embed=queues[Kind.EMBED],
            prefill=queues[Kind.PREFILL],
            admit=Admission(self, waiting, adapters),
            spare=self.max_num_scheduled_tokens if self.cache_config.enable_prefix_caching else 0,
        )
        plan = self.mix_policy.plan(view)
        record = StepRecord.before(self, queues, plan)
        output = self._execute(plan, waiting, throttle_prefills)
        scheduled = self._scheduled_by_kind(plan, output)
        self.mix_policy.settle(scheduled)
        record.after(self, output, scheduled)
        self._recorder.write(record)
        return output

    def _schedule_generation(self, throttle_prefills: bool) -> SchedulerOutput:
        prefills = [r.request_id for r in self.running if r.is_prefill_chunk]
        output = super().schedule(throttle_prefills)
        tokens = output.num_scheduled_tokens
        prefills += [new.req_id for new in output.scheduled_new_reqs]
        prefills += output.scheduled_cached_reqs.resumed_req_ids
        record = StepRecord(budget=self.max_num_scheduled_tokens)
        record.after(self, output, {Kind.PREFILL: sum(tokens.get(req_id, 0) for req_id in prefills)})
        self._recorder.write(record)
        return output

    def _running_work(self) -> tuple[dict[Kind, InFlightThenWaiting], int, set[int]]:
        """The work of both kinds, the number of decodes, and the adapters that running requests hold."""
        waiting = self._real_waiting()
        in_flight: dict[Kind, list[WorkItem]] = {Kind.EMBED: [], Kind.PREFILL: []}
        adapters = set()
        decodes = 0
        for request in self.running:
            if request.lora_request is not None:
                adapters.add(request.lora_request.lora_int_id)
            if request.pooling_params is None and not request.is_prefill_chunk:
                decodes += 1
                continue
            remaining = request.num_tokens - request.num_computed_tokens
            if remaining > 0:
                kind = kind_of(request)
                order = waiting.orders[request.request_id]
                in_flight[kind].append(WorkItem(request.request_id, kind, remaining, order, True))
        queues = {
            kind: InFlightThenWaiting(kind, items, waiting.kinds[kind]) for kind, items in in_flight.items()
        }
        return queues, decodes, adapters

    def _execute(self, plan: Plan, waiting: WaitingByKind, throttle_prefills: bool) -> SchedulerOutput:
        """Let vLLM's schedule() run exactly this plan."""
        grants: dict[str, int] = {}
        starting: dict[str, Request] = {}
        for chunk in plan.chunks:
            if (
                chunk.request_id not in grants
                and self.requests[chunk.request_id].status != RequestStatus.RUNNING
            ):
                starting[chunk.request_id] = waiting[chunk.request_id]
            grants[chunk.request_id] = grants.get(chunk.request_id, 0) + chunk.tokens
        # A head that vLLM refused although it seemed to fit goes last this time, behind the other kind.
        order = sorted(starting.values(), key=lambda r: kind_of(r) == self._stuck)
        step_queue = StepQueue(waiting, order)
        self._grants, self._run_decodes = grants, plan.decode
        self.waiting = step_queue
        try:
            output: SchedulerOutput = super().schedule(throttle_prefills)
        finally:
            self.waiting = waiting
            self._grants, self._run_decodes = None, True
        budget_left = output.total_num_scheduled_tokens < self.max_num_scheduled_tokens
        self._stuck = kind_of(step_queue.peek_request()) if step_queue and budget_left else None
        return output

    def _reserve_prefill_lookahead(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        tokens: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        grants = self._grants
        if grants is None:
            return tokens
        granted = grants.get(request.request_id)
        if granted is not None:
            return min(self._to_the_last_position(request, num_computed_tokens, tokens), granted)
        if request.status != RequestStatus.RUNNING:
            return tokens  # it holds KV blocks while it waits (remote KV, streaming), so vLLM drains it first
        if request.is_prefill_chunk or request.pooling_params is not None:
            return 0
        return tokens if self._run_decodes else 0

    def _to_the_last_position(self, request: Request, computed: int, tokens: int) -> int:
        """Undo vLLM's reservation of one position for a sampled token: an embedding samples none, and one
        of exactly the model's length would otherwise wait for its last token for ever."""
        limit = self.max_model_len - self.num_sampled_tokens_per_step
        if request.pooling_params is not None and computed + tokens == limit < request.num_tokens:
            return request.num_tokens - computed
        return tokens

    def _scheduled_by_kind(self, plan: Plan, output: SchedulerOutput) -> dict[Kind, int]:
        scheduled = {Kind.EMBED: 0, Kind.PREFILL: 0}
        tokens = output.num_scheduled_tokens
        for request_id, kind in {chunk.request_id: chunk.kind for chunk in plan.chunks}.items():
            scheduled[kind] += tokens.get(request_id, 0)
        return scheduled

    def shutdown(self) -> None:
        self._recorder.close()
        super().shutdown()


class MixedScheduler(MixedScheduling):
    """For synchronous scheduling (the CPU backend)."""


class AsyncMixedScheduler(MixedScheduling, AsyncScheduler):
    """For asynchronous scheduling (GPU backends)."""

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        for request_id in self._embeddings.intersection(scheduler_output.num_scheduled_tokens):
            # A pooling request samples nothing, so no output token is on its way.
            request = self.requests[request_id]
            request.num_output_placeholders = 0
            request.spec_token_ids = []
