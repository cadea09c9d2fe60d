"""What preloading libiomp5 (and tcmalloc where present) is worth: time without it over time with it.

    python benchmarks/preload.py --cores 0-1

An OpenMP can only be chosen when a process starts. So two engines run, each with its own processes as under
`orthrus serve`, one of them preloaded; they answer the same requests in turn, one waiting while the other
works, in an order that turns too. A ratio above 1 speaks for preloading: the median over the rounds, with
the quartiles and the ratio of the sums over all rounds.
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

READY = "ready"
WORKLOADS = {"generate, 1 client": 1, "generate, 8 clients": 8, "embed, 8 clients": 8}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the sample model")
    parser.add_argument("--cores", default="0-1", help="cores that the engine computes on")
    parser.add_argument("--dtype", choices=["auto", "bfloat16", "float32"], default="auto")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", type=Path, help="append every round to this file, a JSON line each")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def child(args: argparse.Namespace) -> None:
    """Run each workload that standard input names, and print the seconds it took."""
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
    print(READY, flush=True)  # noqa: T201
    for turn, line in enumerate(sys.stdin):
        name = line.strip()
        embeds = name.startswith("embed")
        params: Any = PoolingParams(task="embed")
        if not embeds:
            params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
        start = time.perf_counter()
        for i in range(WORKLOADS[name]):
            prompt = [100 + (7 * i + k) % 20_000 for k in range(128 if embeds else 16)]
            engine.add_request(f"{turn}-{i}", {"prompt_token_ids": prompt}, params.clone())
        while engine.has_unfinished_requests():
            engine.step()
        print(time.perf_counter() - start, flush=True)  # noqa: T201


def start(args: argparse.Namespace, preload: bool) -> "subprocess.Popen[str]":
    """An engine with or without the preloaded libraries, once it is ready."""
    from orthrus.preload import default_libraries, preload_environment

    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    env |= {
        "VLLM_CPU_OMP_THREADS_BIND": args.cores,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    if preload:
        env = preload_environment(env, default_libraries())
    command = [sys.executable, __file__, "--child", "--model", str(args.model), "--dtype", args.dtype]
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if not any(line.strip() == READY for line in process.stdout):
        raise RuntimeError(f"the engine ended with status {process.wait()}")
    return process


def ask(process: "subprocess.Popen[str]", name: str) -> float:
    """Seconds that the engine took for one workload."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(name + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    args = parse_args()
    if args.child:
        child(args)
        return
    if args.model is None:
        from orthrus.models import get

        args.model = get("smollm2", lambda _stage: None)
    engines = {preload: start(args, preload) for preload in (True, False)}
    rounds: list[dict[bool, dict[str, float]]] = []
    for turn in range(args.rounds + 1):
        order = (True, False) if turn % 2 else (False, True)
        took: dict[bool, dict[str, float]] = {True: {}, False: {}}
        for name in WORKLOADS:
            for preload in order:
                took[preload][name] = ask(engines[preload], name)
        if turn == 0:
            continue  # warms up
        rounds.append(took)
        if args.save:
            with args.save.open("a") as file:
                line = {"round": turn, "cores": args.cores, "with": took[True], "without": took[False]}
                file.write(json.dumps(line) + "\n")
    for engine in engines.values():
        engine.communicate()  # closes its standard input, and with that ends it
    for name in WORKLOADS:
        ratios = [took[False][name] / took[True][name] for took in rounds]
        low, middle, high = statistics.quantiles(ratios, n=4)
        sums = [sum(took[preload][name] for took in rounds) for preload in (False, True)]
        total = sums[0] / sums[1]
        print(f"{name:20} {middle:.3f} ({low:.3f} to {high:.3f}), of the sums {total:.3f}")  # noqa: T201


if __name__ == "__main__":
    main()
