"""One engine in a process of its own that embeds rounds of inputs: a JSON job in, an .npz of results out.

Run as `python -m orthrus.bench.pooling.engine_process JOB.json OUT.npz`. The engine's core lives in this
process (VLLM_ENABLE_V1_MULTIPROCESSING=0), so that the scheduler can be watched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADS = ("mean", "cls", "weighted_mean", "last")
DEFAULTS = {"VLLM_CPU_KVCACHE_SPACE": "2"}
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Job:
    """What one engine does. Each round is a list of inputs (token ids), embedded with the mean head.

    `one_by_one` waits for each answer before the next input is sent. `every_head` pools each input with all
    of HEADS from the same forward passes, by the engine's own pooler, four times over;
    `pool_in` then cuts what each step gives into pieces of so many rows before they are pooled.
    """

    model: str
    rounds: list[list[list[int]]]
    settings: dict[str, Any]
    engine: dict[str, Any]
    one_by_one: bool = False
    every_head: bool = False
    pool_in: int | None = None


@dataclass
class Round:
    """What one round gave: seconds in all and for each input, tokens computed, vectors [n, d] by head."""

    seconds: float
    tokens: int
    latencies: NDArray[np.float64]
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)


class EngineFailedError(RuntimeError):
    """The engine's process ended with an error; the message is its last lines."""


def embed_in_process(job: Job) -> list[Round]:
    """Run `job` in a new process. Raises EngineFailedError."""
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "job.json", Path(folder) / "rounds.npz"
        given.write_text(json.dumps(asdict(job)))
        command = [sys.executable, "-m", __name__, str(given), str(answer)]
        done = subprocess.run(
            command, env={**DEFAULTS, **os.environ, **ENVIRONMENT}, capture_output=True, text=True
        )
        if done.returncode:
            raise EngineFailedError("\n".join(done.stderr.splitlines()[-15:]))
        with np.load(answer) as stored:
            return [_read(stored, i) for i in range(len(job.rounds))]


def _read(stored: Any, i: int) -> Round:
    seconds, tokens = stored[f"{i}/totals"]
    prefix = f"{i}/vectors/"
    vectors = {name.removeprefix(prefix): stored[name] for name in stored.files if name.startswith(prefix)}
    return Round(float(seconds), int(tokens), stored[f"{i}/latencies"], vectors)


def _run(job: Job) -> dict[str, Any]:
    from vllm import LLM

    llm = LLM(
        job.model,
        additional_config={"orthrus": job.settings},
        disable_log_stats=True,
        seed=0,
        **{"enforce_eager": True, **job.engine},
    )
    core = llm.llm_engine.engine_core.engine_core
    scheduled = _watch(core.scheduler)
    heads = (
        _EveryHead(core.model_executor.driver_worker.worker.model_runner, job.pool_in)
        if job.every_head
        else None
    )
    results: dict[str, Any] = {}
    warm = job.rounds[0][0][:64]
    _round(llm, [[token + 1 for token in warm]], one_by_one=True)  # other tokens, which no cache can reuse
    for i, prompts in enumerate(job.rounds):
        before, start = scheduled[0], time.perf_counter()
        vectors, latencies = _round(llm, prompts, one_by_one=job.one_by_one)
        seconds = time.perf_counter() - start
        results[f"{i}/totals"] = np.array([seconds, scheduled[0] - before])
        results[f"{i}/latencies"] = np.array(latencies)
        results[f"{i}/vectors/mean"] = np.stack(vectors)
        if heads is not None:
            for head, found in heads.take(len(prompts)).items():
                results[f"{i}/vectors/{head}"] = found
    core.shutdown()
    return results


def _round(llm: Any, prompts: Sequence[list[int]], one_by_one: bool) -> tuple[list[Any], list[float]]:
    from vllm import PoolingParams

    engine = llm.llm_engine
    vectors: dict[int, Any] = {}
    latencies: dict[int, float] = {}
    added: dict[int, float] = {}
    waiting = list(range(len(prompts)))
    while waiting or engine.has_unfinished_requests():
        while waiting and not (one_by_one and engine.has_unfinished_requests()):
            i = waiting.pop(0)
            params = PoolingParams(task="embed", use_activation=False, extra_kwargs={"pooling": "mean"})
            added[i] = time.perf_counter()
            engine.add_request(str(i), {"prompt_token_ids": prompts[i]}, params)
        for output in engine.step():
            i = int(output.request_id)
            latencies[i] = time.perf_counter() - added[i]
            vectors[i] = output.outputs.data.numpy()
    order = range(len(prompts))
    return [vectors[i] for i in order], [latencies[i] for i in order]


def _watch(scheduler: Any) -> list[int]:
    scheduled, schedule = [0], scheduler.schedule

    def counted(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        scheduled[0] += output.total_num_scheduled_tokens
        return output

    scheduler.schedule = counted
    return scheduled


class _EveryHead:
    """The runner's pooler once more for each head, fed with the same steps."""

    def __init__(self, runner: Any, pool_in: int | None) -> None:
        from orthrus.engine.pooler import StepPooler

        self._others = {head: StepPooler(runner.vllm_config, runner.device) for head in HEADS}
        self._found: dict[str, dict[str, Any]] = {head: {} for head in HEADS}
        self._pool_in = pool_in
        self._step, runner.pooler.step = runner.pooler.step, self.step

    def step(self, hidden: Any, **step: Any) -> Any:
        rows = zip(step["lengths"], step["starts"], step["prompt_lens"], strict=True)
        pieces, offset = [], 0
        for i, (length, start, prompt_len) in enumerate(rows):
            for first in range(0, length, self._pool_in or length):
                size = min(self._pool_in or length, length - first)
                pieces.append((i, hidden[offset + first :][:size], size, start + first, prompt_len))
            offset += length
        for head, pooler in self._others.items():
            for i, part, size, start, prompt_len in pieces:
                params = step["params"][i].clone()
                params.extra_kwargs = {"pooling": head}
                (vector,) = pooler.step(
                    part,
                    req_ids=[step["req_ids"][i]],
                    params=[params],
                    lengths=np.array([size]),
                    starts=np.array([start]),
                    prompt_lens=np.array([prompt_len]),
                )
                if vector is not None:
                    self._found[head][step["req_ids"][i]] = vector
        return self._step(hidden, **step)

    def take(self, count: int) -> dict[str, NDArray[np.float32]]:
        """The last `count` vectors of each head, in the order of the inputs (request ids begin with it)."""
        taken = {}
        for head, found in self._found.items():
            last = list(found.items())[-count:]
            last.sort(key=lambda item: int(item[0].partition("-")[0]))
            taken[head] = np.stack([vector.cpu().numpy() for _, vector in last])
            found.clear()
        return taken


if __name__ == "__main__":
    job_file, out_file = (Path(name) for name in sys.argv[1:3])
    np.savez(out_file, **_run(Job(**json.loads(job_file.read_text()))))
