"""The worker for vLLM's CPU backend."""

from __future__ import annotations

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
        cpu_wait.install()
        super().init_device()
        MixedCPUModelRunner.adopt(self.model_runner)
