"""What a benchmark attaches to an engine's model runner: more poolers on the same steps, and a clock."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADS = ("mean", "cls", "weighted_mean", "last")
PIECES = "pieces/"
"""What stands before a head's name where its rows were pooled in pieces."""


class EveryHead:
    """The runner's pooler once more for each head, fed with the same steps.

    With `pool_in`, and once more again with each step's rows cut into pieces of that many.
    """

    def __init__(self, runner: Any, pool_in: int | None) -> None:
        from orthrus.engine.pooler import StepPooler

        sizes = {"": None, **({PIECES: pool_in} if pool_in else {})}
        self._others = {
            prefix + head: (head, size, StepPooler(runner.vllm_config, runner.device))
            for prefix, size in sizes.items()
            for head in HEADS
        }
        self._found: dict[str, dict[str, Any]] = {name: {} for name in self._others}
        self._step, runner.pooler.step = runner.pooler.step, self.step

    def step(self, hidden: Any, **step: Any) -> Any:
        """In place of the runner's pooler: every other pooler first, then the runner's own."""
        for name, (head, size, pooler) in self._others.items():
            offset = 0
            for i, length in enumerate(step["lengths"]):
                for first in range(0, length, size or length):
                    rows = hidden[offset + first : offset + min(first + (size or length), length)]
                    params = step["params"][i].clone()
                    params.extra_kwargs = {"pooling": head}
                    (vector,) = pooler.step(
                        rows,
                        req_ids=[step["req_ids"][i]],
                        params=[params],
                        lengths=np.array([len(rows)]),
                        starts=np.array([step["starts"][i] + first]),
                        prompt_lens=np.array([step["prompt_lens"][i]]),
                    )
                    if vector is not None:
                        self._found[name][step["req_ids"][i]] = vector
                offset += length
        return self._step(hidden, **step)

    def take(self, count: int) -> dict[str, NDArray[np.float32]]:
        """The last `count` vectors of each head, in the order of the inputs (request ids begin with it)."""
        taken = {}
        for name, found in self._found.items():
            last = list(found.items())[-count:]
            last.sort(key=lambda item: int(item[0].partition("-")[0]))
            taken[name] = np.stack([vector.cpu().numpy() for _, vector in last])
            found.clear()
        return taken


class StepClock:
    """Seconds of the model's forward pass and of the pooling, for each step that has embeddings."""

    def __init__(self, runner: Any) -> None:
        self._device = runner.device
        self._steps: list[tuple[float, float, float]] = []
        self._begun = self._forward = 0.0
        model = runner.get_model()
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end)
        self._step, runner.pooler.step = runner.pooler.step, self.step

    def step(self, hidden: Any, **step: Any) -> Any:
        """In place of the runner's pooler."""
        begun = self._now()
        vectors = self._step(hidden, **step)
        self._steps.append((float(len(hidden)), self._forward, self._now() - begun))
        return vectors

    def take(self) -> NDArray[np.float64]:
        """The steps since the last call, [steps, 3]: embedding rows, seconds of the model, of the pooling."""
        steps = np.array(self._steps, dtype=np.float64).reshape(-1, 3)
        self._steps.clear()
        return steps

    def _begin(self, *_: Any) -> None:
        self._begun = self._now()

    def _end(self, *_: Any) -> None:
        self._forward = self._now() - self._begun

    def _now(self) -> float:
        if self._device.type != "cpu":
            import torch

            torch.accelerator.synchronize()
        return time.perf_counter()
