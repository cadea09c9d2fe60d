"""The worker for vLLM's CPU backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orthrus.engine import attention_cpu, cpu_memory, cpu_wait, linear_cpu, lora_cpu, process_end
from orthrus.engine.compat import (
    Attention,
    CompilationMode,
    CPUModelRunner,
    get_layers_from_vllm_config,
    get_pp_group,
)
from orthrus.engine.compat import CPUWorker as VllmCPUWorker
from orthrus.engine.config import OrthrusConfig
from orthrus.engine.integrity import WorkerIntegrity
from orthrus.engine.runner import MixedModelRunner
from orthrus.engine.step_watch import StepDiscardedError, StepWatch, discarded

if TYPE_CHECKING:
    from orthrus.engine.compat import SchedulerOutput


class MixedCPUModelRunner(MixedModelRunner, CPUModelRunner):
    """Mixed steps over vLLM's CPU runner (v1/worker/cpu_model_runner.py)."""

    intermediate_tensors: Any
    _watch: StepWatch

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(*args, **kwargs)
        is_eager = self.vllm_config.compilation_config.mode is CompilationMode.NONE
        linear_layers = [layer for layer in self.model.modules() if hasattr(layer, "cpu_linear")]
        self._watch = StepWatch(
            get_layers_from_vllm_config(self.vllm_config, Attention), linear_layers if is_eager else ()
        )
        if OrthrusConfig.of(self.vllm_config).batch_invariant:
            attention_cpu.InvariantAttentionBuilder.adopt_all(self.attn_groups)
        if self.intermediate_tensors is None and not get_pp_group().is_first_rank:
            # vLLM makes these in the warm-up for the compiler only, and an eager pipeline needs them too.
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )

    def execute_model(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        self._watch.begin(scheduler_output)
        try:
            return super().execute_model(scheduler_output, *args, **kwargs)
        except StepDiscardedError:
            return discarded(self.input_batch)
        finally:
            self._watch.end()


class CPUWorker(WorkerIntegrity, VllmCPUWorker):
    """vLLM's CPU worker (v1/worker/cpu_worker.py) with the mixed-step runner and correct LoRA."""

    model_runner: MixedCPUModelRunner
    requested_cpu_memory: int

    def init_device(self) -> None:
        lora_cpu.install()
        linear_cpu.install(steady=OrthrusConfig.of(self.vllm_config).batch_invariant)
        cpu_wait.install()
        process_end.install()
        super().init_device()
        MixedCPUModelRunner.adopt(self.model_runner)

    def determine_available_memory(self) -> int:
        if OrthrusConfig.of(self.vllm_config).kv_from_free:
            parallel = self.vllm_config.parallel_config
            replicas = max(1, parallel.data_parallel_size_local)
            claim = cpu_memory.claim(parallel.local_world_size * replicas)
            self.requested_cpu_memory = min(self.requested_cpu_memory, claim)
        memory: int = super().determine_available_memory()
        return memory
