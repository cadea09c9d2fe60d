"""The scheduler: an ordering layer over vLLM's own (paper, section 4; vllm/v1/core/sched/scheduler.py).

Each step it shows the two kinds of work to a policy, lets vLLM's `schedule()` carry out the plan, and
settles the policy on what was really scheduled. A plan reaches vLLM in two ways: the waiting queue is
swapped for one that holds the planned requests in order, and `_reserve_prefill_lookahead`, which vLLM
asks for every request just before it allocates, caps each request at its granted tokens. While no
embedding is in the system, vLLM's `schedule()` runs as it is.

Settling and recording wait until vLLM has sent the step to the workers, so that these need not wait: vLLM
asks for the grammar bitmask just then (vllm/v1/engine/core.py, `EngineCore.step`).
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from orthrus.engine import cpu_wait, integrity, process_end
from orthrus.engine.admission import Admission
from orthrus.engine.compat import AsyncScheduler, PauseState, RequestStatus, Scheduler
from orthrus.engine.config import OrthrusConfig
from orthrus.engine.discards import Discards
from orthrus.engine.embedding import EmbeddingSpec
from orthrus.engine.first_token import FirstToken
from orthrus.engine.grants import StepGrants
from orthrus.engine.lanes import InFlightThenWaiting
from orthrus.engine.outlook import Outlook
from orthrus.engine.prefix_reuse import PrefixReuse
from orthrus.engine.refusals import of_generations
from orthrus.engine.running_prompts import RunningPrompts
from orthrus.engine.step_size import StepSize
from orthrus.engine.step_watch import DISCARDED
from orthrus.engine.steps import StepRecorder
from orthrus.engine.waiting import StepQueue, WaitingByKind, kind_of
from orthrus.policy.options import PolicyOptions
from orthrus.policy.registry import make
from orthrus.policy.work import Kind, Plan, Refusal, StepView, WorkItem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orthrus.engine.compat import ModelRunnerOutput, Request, SchedulerOutput


class MixedScheduling(Scheduler):
    """Mixin over vLLM's Scheduler and AsyncScheduler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = OrthrusConfig.of(self.vllm_config)
        self.max_num_active_reqs: int
        self.max_num_scheduled_tokens: int
        self.generation_slots: int = config.generation_slots or self.max_num_active_reqs
        self.max_num_active_reqs = self.generation_slots
        self.waiting = WaitingByKind(self.policy)
        options = PolicyOptions(**config.policy_options)
        self.mix_policy = make(config.policy, options)
        self._outlook = Outlook(self, options)
        self._prompts = RunningPrompts()
        self.settings: OrthrusConfig = config
        self.embeddings: dict[str, EmbeddingSpec] = {}
        self.real_waiting: WaitingByKind = self.waiting
        self._grants: StepGrants | None = None
        self._stuck: Kind | None = None
        self._unsettled: Callable[[], None] | None = None
        self._admission = Admission(self)
        self._reuse = PrefixReuse(self, config)
        self._first_token = FirstToken(self, options, self._outlook)
        self._discards = Discards(self, self._first_token.target_s)
        self._step_size = StepSize(config.mixed_step_tokens or 0, config.itl_target_s)
        integrity.install()
        cpu_wait.install()
        process_end.install()
        self._recorder = StepRecorder(config, self.parallel_config.data_parallel_index)

    def add_request(self, request: Request) -> None:
        if request.pooling_params is not None:
            spec = EmbeddingSpec.of(request.pooling_params, self.settings)
            self.embeddings[request.request_id] = spec
            if not self._reuse.may_read_cache(spec):
                request.skip_reading_prefix_cache = True
        super().add_request(request)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.embeddings.pop(request.request_id, None)
        self.real_waiting.forget(request.request_id)
        self._outlook.observe(request)
        self._prompts.ended(request)
        return super()._free_request(request, *args, **kwargs)

    def check_idle(self) -> dict[str, int]:
        """What is held; every count is 0 once all requests have finished or were aborted."""
        return integrity.of_scheduler(self)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self._settle()
        waiting = self.real_waiting
        waiting.promote(self._handle_blocked_waiting_request, self.deferred_waiting)
        if not self.embeddings or self._pause_state == PauseState.PAUSED_ALL:
            return self._schedule_generation(throttle_prefills)
        budget = self.max_num_scheduled_tokens
        in_flight, prefills, embeddings = self._prompts.work(self.running, waiting.orders)
        decodes = len(self.running) - prefills - embeddings
        generates = bool(decodes or in_flight[Kind.PREFILL] or waiting)
        tokens = self._step_size.tokens(budget, decodes, generates)
        if waiting and not decodes and not in_flight[Kind.PREFILL] and not throttle_prefills:
            tokens = self._first_token.tokens(tokens)
        self.max_num_scheduled_tokens = tokens
        try:
            self._admission.begin_step(embeddings)
            plan = partial(self._schedule_mixed, in_flight, decodes, throttle_prefills)
            return plan() if generates else self._discards.schedule(plan)
        finally:
            self.max_num_scheduled_tokens = budget

    def _schedule_mixed(
        self,
        in_flight: dict[Kind, list[WorkItem]],
        decodes: int,
        throttle_prefills: bool,
    ) -> SchedulerOutput:
        """Plan a step over both kinds, let vLLM carry it out, and settle."""
        waiting = self.real_waiting
        admission = self._admission
        queues = {
            kind: InFlightThenWaiting(items, waiting.kinds[kind], admission.has_adapter_slot)
            for kind, items in in_flight.items()
        }
        view = StepView(
            budget=max(0, self.max_num_scheduled_tokens - decodes),
            decode_tokens=decodes,
            embed=queues[Kind.EMBED],
            prefill=queues[Kind.PREFILL],
            admit=admission,
            spare=admission.spare_tokens,
            expected_decode_tokens=self._outlook.expected_decode_tokens,
            wait_s=self._first_token.wait_s,
        )
        plan = self.mix_policy.plan(view)
        grants = StepGrants(plan)
        output = self._execute(grants, admission.admitted, throttle_prefills)
        self._reuse.attach_orders(output, grants.embeddings(output.num_scheduled_tokens))
        budget = self.max_num_scheduled_tokens
        self._unsettled = partial(
            self._settle_mixed, output, time.time(), budget, plan, grants, queues, admission.passed_over
        )
        if not output.total_num_scheduled_tokens:
            self._settle()  # maybe the last step for a long time
        return output

    def _settle_mixed(
        self,
        output: SchedulerOutput,
        planned_at: float,
        budget: int,
        plan: Plan,
        grants: StepGrants,
        queues: Mapping[Kind, InFlightThenWaiting],
        passed_over: Mapping[Kind, Refusal],
    ) -> None:
        self._follow_prompts(output)
        self._admission.end_step()
        scheduled = grants.by_kind(output.num_scheduled_tokens)
        prompt_tokens = sum(scheduled.values())
        self._step_size.ran(prompt_tokens)
        scheduled[Kind.DECODE] = output.total_num_scheduled_tokens - prompt_tokens
        self.mix_policy.settle(scheduled)
        if self._recorder.enabled:
            refused = {**passed_over, **plan.refused}
            if self._stuck is not None:
                refused.setdefault(self._stuck, Refusal.KV_BLOCKS)
            left = {kind: queue.remaining for kind, queue in queues.items()}
            self._leave_out_cached(left, output)
            self._recorder.step(self, output, planned_at, budget, scheduled, left, refused)

    def _settle(self) -> None:
        """Charge and record the last mixed step, if that has not been done."""
        settle, self._unsettled = self._unsettled, None
        if settle is not None:
            settle()

    def arrived(self, request: Request) -> None:
        """A request has come and will be in the queue before the next step; from another thread."""
        if request.pooling_params is None:
            self._discards.arrived()

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        if self._discards.is_watched:
            if hasattr(model_runner_output, DISCARDED):
                self._take_back(scheduler_output)
            else:
                self._discards.keep()
                self._settle()
        return super().update_from_output(scheduler_output, model_runner_output)

    def _take_back(self, output: SchedulerOutput) -> None:
        self._unsettled = None
        self._follow_prompts(output)
        self._admission.end_step()
        self._reuse.take_back()
        self.mix_policy.settle({})
        self._recorder.discarded(self._discards.take_back())

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> Any:
        if not self._discards.is_watched:  # else it may yet be discarded
            self._settle()
        return super().get_grammar_bitmask(scheduler_output)

    def _schedule_generation(self, throttle_prefills: bool) -> SchedulerOutput:
        # Nothing generates in an empty step, by which vLLM tells its workers of finished requests.
        self._step_size.saw_no_embeddings(generates=bool(self.running or self.real_waiting))
        if not self.embeddings:
            self.mix_policy.stand_by()
        if not self._recorder.enabled:
            self._prompts.forget()
            return super().schedule(throttle_prefills)
        chunked = [r for r in self._prompts.current(self.running) if r.is_prefill_chunk]
        left = {kind: lanes.remaining for kind, lanes in self.real_waiting.kinds.items()}
        for request in chunked:
            left[kind_of(request)] += request.num_tokens - request.num_computed_tokens
        output = super().schedule(throttle_prefills)
        self._follow_prompts(output)
        self._leave_out_cached(left, output)
        tokens = output.num_scheduled_tokens
        prefills = [r.request_id for r in chunked]
        prefills += [new.req_id for new in output.scheduled_new_reqs]
        prefills += output.scheduled_cached_reqs.resumed_req_ids
        prefill = sum(tokens.get(req_id, 0) for req_id in prefills)
        decode = output.total_num_scheduled_tokens - prefill
        scheduled = {Kind.EMBED: 0, Kind.PREFILL: prefill, Kind.DECODE: decode}
        refused = {} if throttle_prefills else of_generations(self, output)
        budget = self.max_num_scheduled_tokens
        self._recorder.step(self, output, time.time(), budget, scheduled, left, refused)
        return output

    def _leave_out_cached(self, left: dict[Kind, int], output: SchedulerOutput) -> None:
        """Prompt tokens that requests of this step found in the prefix cache were none to compute."""
        if self.connector is not None:
            return  # what it loaded has been left out already, while the request waited
        for new in output.scheduled_new_reqs:
            left[Kind.EMBED if new.req_id in self.embeddings else Kind.PREFILL] -= new.num_computed_tokens

    def _follow_prompts(self, output: SchedulerOutput) -> None:
        if self.connector is None:
            self._prompts.saw(output, self.requests)
        else:
            self._prompts.forget()  # blocks that could not be loaded turn decodes into prompts again

    def _execute(
        self, grants: StepGrants, starting: list[Request], throttle_prefills: bool
    ) -> SchedulerOutput:
        """Let vLLM's schedule() run exactly this plan, in which `starting` begin, in this order."""
        waiting = self.real_waiting
        if self._stuck is not None:
            # A head that vLLM refused although it seemed to fit goes last this time, behind the other kind
            # (but before spare tokens, which run out before they are used up).
            starting.sort(key=lambda r: (not grants.is_planned(r.request_id), kind_of(r) == self._stuck))
        step_queue = StepQueue(waiting, starting)
        self._grants = grants
        self.waiting = step_queue
        self.max_num_active_reqs = self.max_num_running_reqs
        try:
            output: SchedulerOutput = super().schedule(throttle_prefills)
        finally:
            self.waiting = waiting
            self._grants = None
            self.max_num_active_reqs = self.generation_slots
        self._stuck = None
        if step_queue and not output.preempted_req_ids:
            head = step_queue.peek_request()
            if grants.is_planned(head.request_id):
                self._stuck = kind_of(head)
        return output

    def _reserve_prefill_lookahead(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        grants = self._grants
        if (
            num_new_tokens == 1
            and not request.is_prefill_chunk
            and request.pooling_params is None
            and (grants is None or (grants.run_decodes and request.request_id not in grants.kinds))
        ):
            return 1  # a decode, as most of hundreds are: the short way to what the rest would say
        tokens: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        if grants is None:
            return tokens
        if request.request_id in grants:
            wanted = self._to_the_last_position(request, num_computed_tokens, tokens)
            return grants.spend(request.request_id, wanted)
        if request.status != RequestStatus.RUNNING:
            return tokens  # it holds KV blocks while it waits (remote KV, streaming), so vLLM drains it first
        if request.is_prefill_chunk or request.pooling_params is not None:
            return 0
        return tokens if grants.run_decodes else 0

    def _get_local_prefix_cache_hit(self, request: Request) -> tuple[Any, int, int, bool]:
        hit: tuple[Any, int, int, bool] = super()._get_local_prefix_cache_hit(request)
        return hit if request.pooling_params is None else self._reuse.shorten(request, hit)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        self._reuse.clear()
        done: bool = super().reset_prefix_cache(*args, **kwargs)
        return done

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Preempt, and take out of the prefix cache what this very step was to compute (vLLM leaves it)."""
        kv, groups = self.kv_cache_manager, self.kv_cache_config.kv_cache_groups
        for blocks, group in zip(kv.get_block_ids(request.request_id), groups, strict=True):
            kv.evict_blocks(set(blocks[request.num_computed_tokens // group.kv_cache_spec.block_size :]))
        super()._preempt_request(request, *args, **kwargs)

    def _to_the_last_position(self, request: Request, computed: int, tokens: int) -> int:
        """Undo vLLM's reservation of one position for a sampled token: an embedding samples none, and one
        of exactly the model's length would otherwise wait for its last token for ever."""
        limit = self.max_model_len - self.num_sampled_tokens_per_step
        if request.pooling_params is not None and computed + tokens == limit < request.num_tokens:
            return request.num_tokens - computed
        return tokens

    def shutdown(self) -> None:
        self._settle()
        self._recorder.close()
        super().shutdown()


class MixedScheduler(MixedScheduling):
    """For synchronous scheduling (the CPU backend)."""


class AsyncMixedScheduler(MixedScheduling, AsyncScheduler):
    """For asynchronous scheduling (GPU backends)."""

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        if self._grants is None:
            return
        for request_id in self._grants.embeddings(scheduler_output.num_scheduled_tokens):
            # A pooling request samples nothing, so no output token is on its way.
            request = self.requests[request_id]
            request.num_output_placeholders = 0
            request.spec_token_ids = []
