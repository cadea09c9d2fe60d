"""The worker for vLLM's CPU backend."""

from __future__ import annotations

from typing import Any

from orthrus.engine import cpu_wait, lora_cpu
from orthrus.engine.compat import CPUModelRunner
from orthrus.engine.compat import CPUWorker as VllmCPUWorker
from orthrus.engine.integrity import WorkerIntegrity
from orthrus.engine.runner import MixedModelRunner


class MixedCPUModelRunner(MixedModelRunner, CPUModelRunner):
    """Mixed steps over vLLM's CPU runner (v1/worker/cpu_model_runner.py)."""


class CPUWorker(WorkerIntegrity, VllmCPUWorker):
    """vLLM's CPU worker (v1/worker/cpu_worker.py) with the mixed-step runner and correct LoRA."""

    model_runner: MixedCPUModelRunner

    def init_device(self) -> None:
        lora_cpu.install()
        super().init_device()
        MixedCPUModelRunner.adopt(self.model_runner)

    def compile_or_warm_up_model(self) -> Any:
        times = super().compile_or_warm_up_model()
        cpu_wait.install()
        return times
