"""The worker for CUDA and ROCm devices."""

from __future__ import annotations

from orthrus.engine.compat import GPUWorker as VllmGPUWorker
from orthrus.engine.integrity import WorkerIntegrity
from orthrus.engine.runner import MixedModelRunner


class GPUWorker(WorkerIntegrity, VllmGPUWorker):
    """vLLM's GPU worker (v1/worker/gpu_worker.py) with the mixed-step runner."""

    model_runner: MixedModelRunner

    def init_device(self) -> None:
        super().init_device()
        MixedModelRunner.adopt(self.model_runner)
