"""What preloading libiomp5 (and tcmalloc where present) is worth: time without it over time with it.

    python benchmarks/preload.py --cores 0-1

An OpenMP can only be chosen when a process starts, so each variant is a process of its own, in turn, with
one engine in it; a ratio above 1 speaks for preloading. A process reports its fastest of a few runs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORKLOADS = {"generate, 1 client": 1, "generate, 8 clients": 8, "embed, 8 clients": 8}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the sample model")
    parser.add_argument("--cores", default="0-1", help="cores that the engine computes on")
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float32"], default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3, help="runs of a workload in one process")
    parser.add_argument("--save", type=Path, help="append every process' figures to this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def child(args: argparse.Namespace) -> dict[str, float]:
    """Least seconds of each workload in this process."""
    from vllm import LLM, PoolingParams, SamplingParams

    engine: Any = LLM(
        model=str(args.model),
        dtype=args.dtype,
        max_model_len=2048,
        max_num_seqs=64,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
        additional_config={"orthrus": {}},
    ).llm_engine
    took: dict[str, list[float]] = {name: [] for name in WORKLOADS}
    for turn in range(args.runs + 1):
        for name, clients in WORKLOADS.items():
            embeds = name.startswith("embed")
            params: Any = PoolingParams(task="embed")
            if not embeds:
                params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
            start = time.perf_counter()
            for i in range(clients):
                prompt = [100 + (7 * i + k) % 20_000 for k in range(128 if embeds else 16)]
                engine.add_request(f"{name}-{turn}-{i}", {"prompt_token_ids": prompt}, params.clone())
            while engine.has_unfinished_requests():
                engine.step()
            took[name].append(time.perf_counter() - start)
    return {name: min(values[1:]) for name, values in took.items()}


def run(args: argparse.Namespace, preload: bool) -> dict[str, float]:
    """The figures of a process with or without the preloaded libraries."""
    from orthrus.preload import default_libraries, preload_environment

    first, _, last = args.cores.partition("-")
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    env |= {
        "VLLM_CPU_OMP_THREADS_BIND": args.cores,
        "OMP_NUM_THREADS": str(int(last or first) - int(first) + 1),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    if preload:
        env = preload_environment(env, default_libraries())
    command = [sys.executable, __file__, "--child", "--model", str(args.model), "--dtype", args.dtype]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    args = parse_args()
    if args.child:
        print(json.dumps(child(args)))  # noqa: T201
        return
    if args.model is None:
        from orthrus.models import get

        args.model = get("smollm2", lambda _stage: None)
    ratios: dict[str, list[float]] = {name: [] for name in WORKLOADS}
    for turn in range(args.rounds):
        order = (True, False) if turn % 2 else (False, True)
        took = {preload: run(args, preload) for preload in order}
        if args.save:
            with args.save.open("a") as file:
                line = {"round": turn, "cores": args.cores, "with": took[True], "without": took[False]}
                file.write(json.dumps(line) + "\n")
        for name, values in ratios.items():
            values.append(took[False][name] / took[True][name])
    for name, values in ratios.items():
        each = ", ".join(f"{value:.2f}" for value in values)
        print(f"{name:20} {statistics.median(values):.2f} ({each})")  # noqa: T201


if __name__ == "__main__":
    main()
