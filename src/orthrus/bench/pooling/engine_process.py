"""One engine in a process of its own that embeds rounds of inputs: a JSON job in, an .npz of results out.

Run as `python -m orthrus.bench.pooling.engine_process JOB.json OUT.npz`; it tells its progress on standard
output. The engine's core lives in that process (VLLM_ENABLE_V1_MULTIPROCESSING=0), so that the scheduler and
the pooler can be watched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthrus.bench.pooling.instruments import EveryHead, StepClock

DEFAULTS = {"VLLM_CPU_KVCACHE_SPACE": "2"}
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}


PROGRESS = "orthrus-bench-done "


@dataclass(frozen=True)
class Job:
    """What one engine does. Each round is a list of inputs (token ids), embedded with the mean head.

    `heads` names another head for each round. `one_by_one` waits for each answer before the next input is
    sent. `every_head` pools each input with all of HEADS from the same forward passes, by the engine's own
    pooler; with `pool_in` once more with what each step gives cut into pieces of so many rows. `timed`
    times the model and the pooler in each step.
    """

    model: str
    rounds: list[list[list[int]]]
    settings: dict[str, Any]
    engine: dict[str, Any]
    heads: list[str] = field(default_factory=list)
    one_by_one: bool = False
    every_head: bool = False
    pool_in: int | None = None
    timed: bool = False


@dataclass
class Round:
    """What one round gave: seconds in all and for each input, tokens computed, vectors [n, d] by head.

    `steps` is [steps, 3] where the job was timed: the step's embedding rows, and the seconds of the model's
    forward pass and of the pooling.
    """

    seconds: float
    tokens: int
    latencies: NDArray[np.float64]
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    steps: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 3)))


class EngineFailedError(RuntimeError):
    """The engine's process ended with an error; the message is its last lines."""


def embed_in_process(job: Job, done: Callable[[int], None] = lambda _: None) -> list[Round]:
    """Run `job` in a new process; `done` hears how many inputs are finished. Raises EngineFailedError."""
    with tempfile.TemporaryDirectory() as folder:
        given, answer, errors = (Path(folder) / name for name in ("job.json", "rounds.npz", "errors"))
        given.write_text(json.dumps(asdict(job)))
        command = [sys.executable, "-m", __name__, str(given), str(answer)]
        with (
            errors.open("w") as written,
            subprocess.Popen(
                command,
                env={**DEFAULTS, **os.environ, **ENVIRONMENT},
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
            ) as process,
        ):
            try:
                for line in process.stdout or ():
                    if line.startswith(PROGRESS):
                        done(int(line.removeprefix(PROGRESS)))
            except BaseException:  # Ctrl-C: the engine must not outlive the command
                process.terminate()
                raise
        if process.returncode:
            raise EngineFailedError("\n".join(errors.read_text(errors="replace").splitlines()[-15:]))
        with np.load(answer) as stored:
            return [_read(stored, i) for i in range(len(job.rounds))]


def _read(stored: Any, i: int) -> Round:
    seconds, tokens = stored[f"{i}/totals"]
    prefix = f"{i}/vectors/"
    vectors = {name.removeprefix(prefix): stored[name] for name in stored.files if name.startswith(prefix)}
    return Round(float(seconds), int(tokens), stored[f"{i}/latencies"], vectors, stored[f"{i}/steps"])


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
    runner = core.model_executor.driver_worker.worker.model_runner
    scheduled = _watch(core.scheduler)
    every_head = EveryHead(runner, job.pool_in) if job.every_head else None
    clock = StepClock(runner) if job.timed else None
    results: dict[str, Any] = {}
    warm = job.rounds[0][0][:64]
    # Other tokens, which no cache can reuse.
    _round(llm, [[token + 1 for token in warm]], "mean", one_by_one=True, finished=lambda: None)
    if clock is not None:
        clock.take()
    count = 0

    def finished() -> None:
        nonlocal count
        count += 1
        sys.stdout.write(f"{PROGRESS}{count}\n")
        sys.stdout.flush()

    for i, prompts in enumerate(job.rounds):
        head = job.heads[i] if job.heads else "mean"
        before, start = scheduled[0], time.perf_counter()
        vectors, latencies = _round(llm, prompts, head, one_by_one=job.one_by_one, finished=finished)
        seconds = time.perf_counter() - start
        results[f"{i}/totals"] = np.array([seconds, scheduled[0] - before])
        results[f"{i}/latencies"] = np.array(latencies)
        results[f"{i}/vectors/{head}"] = np.stack(vectors)
        results[f"{i}/steps"] = clock.take() if clock is not None else np.zeros((0, 3))
        if every_head is not None:
            for name, found in every_head.take(len(prompts)).items():
                results[f"{i}/vectors/{name}"] = found
    core.shutdown()
    return results


def _round(
    llm: Any, prompts: Sequence[list[int]], head: str, *, one_by_one: bool, finished: Callable[[], None]
) -> tuple[list[Any], list[float]]:
    from vllm import PoolingParams

    engine = llm.llm_engine
    vectors: dict[int, Any] = {}
    latencies: dict[int, float] = {}
    added: dict[int, float] = {}
    waiting = list(range(len(prompts)))
    while waiting or engine.has_unfinished_requests():
        while waiting and not (one_by_one and engine.has_unfinished_requests()):
            i = waiting.pop(0)
            params = PoolingParams(task="embed", use_activation=False, extra_kwargs={"pooling": head})
            added[i] = time.perf_counter()
            engine.add_request(str(i), {"prompt_token_ids": prompts[i]}, params)
        for output in engine.step():
            i = int(output.request_id)
            latencies[i] = time.perf_counter() - added[i]
            vectors[i] = output.outputs.data.numpy()
            finished()
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


if __name__ == "__main__":
    job_file, out_file = (Path(name) for name in sys.argv[1:3])
    np.savez(out_file, **_run(Job(**json.loads(job_file.read_text()))))
