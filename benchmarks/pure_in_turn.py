"""Pure generation and pure embedding on one core: stock vLLM, Orthrus with FCFS and with IBS, in turn.

    python benchmarks/pure_in_turn.py --kind generate
    python benchmarks/pure_in_turn.py --kind embed

The engines live in one process and answer the same requests at the same time, one step of each in turn, in
an order that turns too, so that a slow spell of the machine, even of milliseconds, hits all of them alike. An
engine's time is the sum of its own steps; a ratio is the median over the rounds of stock vLLM's time divided
by Orthrus' in the same round, with the quartiles and the ratio of the sums over all rounds. There is no
server and no wait between processes: what is compared is scheduler, model runner and pooling.
"""

import argparse
import gc
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from one_core import bind, model_or_sample


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the sample model")
    parser.add_argument("--kind", choices=["generate", "embed"], default="generate")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32], help="requests at once")
    parser.add_argument("--prompt-tokens", type=int, help="default: 16 (generate), 128 (embed)")
    parser.add_argument("--output-tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=9, help="2 at least, for quartiles")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--core", default="0", help="CPU core that all engines are bound to")
    parser.add_argument("--save", type=Path, help="append every round to this file, a JSON line each")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error(f"--rounds {args.rounds}: quartiles need 2 at least")
    return args


ARGS = parse_args()
bind(ARGS.core)

from vllm import LLM, PoolingParams, SamplingParams  # noqa: E402

VOCABULARY = 20_000
COMPARED = (("fcfs", "stock", "fcfs"), ("ibs", "stock", "ibs"), ("ibs over fcfs", "fcfs", "ibs"))
SHARED = {
    "max_model_len": 2048,
    "max_num_seqs": 64,
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "dtype": ARGS.dtype,
    "disable_log_stats": True,
}


def engines(model: Path) -> dict[str, Any]:
    """The three engines by name."""
    stock: dict[str, Any] = {}
    if ARGS.kind == "embed":
        stock = {"runner": "pooling", "convert": "embed", "pooler_config": {"seq_pooling_type": "MEAN"}}
    orthrus = {
        name: {"additional_config": {"orthrus": {"policy": name, "pooling": "mean"}}}
        for name in ("fcfs", "ibs")
    }
    settings = {"stock": stock, **orthrus}
    return {name: LLM(model=str(model), **SHARED, **extra).llm_engine for name, extra in settings.items()}


def run(found: dict[str, Any], names: list[str], prompts: list[list[int]], tag: str) -> dict[str, float]:
    """Seconds each engine spent on its own calls until every request has its answer in all of them."""
    params: Any = PoolingParams(task="embed")
    if ARGS.kind == "generate":
        params = SamplingParams(max_tokens=ARGS.output_tokens, temperature=0, ignore_eos=True)
    took = dict.fromkeys(names, 0.0)
    for name in names:
        start = time.perf_counter()
        for i, prompt in enumerate(prompts):
            found[name].add_request(f"{tag}-{i}", {"prompt_token_ids": prompt}, params.clone())
        took[name] += time.perf_counter() - start
    order = list(names)
    while working := [name for name in order if found[name].has_unfinished_requests()]:
        for name in working:
            start = time.perf_counter()
            found[name].step()
            took[name] += time.perf_counter() - start
        order = [*order[1:], order[0]]
    return took


def main() -> None:
    model = model_or_sample(ARGS.model)
    found = engines(model)
    gc.collect()
    gc.freeze()
    length = ARGS.prompt_tokens or (16 if ARGS.kind == "generate" else 128)
    print(f"{ARGS.kind}, {ARGS.dtype}: stock vLLM's time over Orthrus', median (quartiles) of the rounds")  # noqa: T201
    for clients in ARGS.clients:
        rng = random.Random(clients)
        prompts = [[rng.randrange(100, VOCABULARY) for _ in range(length)] for _ in range(clients)]
        names = list(found)
        rounds = []
        for turn in range(ARGS.rounds + 1):
            gc.collect()
            took = run(found, names, prompts, f"{clients}-{turn}")
            names = [*names[1:], names[0]]
            if turn == 0:
                continue  # warms up
            rounds.append(took)
            if ARGS.save:
                with ARGS.save.open("a") as file:
                    row = {"kind": ARGS.kind, "dtype": ARGS.dtype, "clients": clients, "round": turn}
                    file.write(json.dumps({**row, "seconds": took}) + "\n")
        shown = []
        for label, above, below in COMPARED:
            low, middle, high = statistics.quantiles((took[above] / took[below] for took in rounds), n=4)
            total = sum(took[above] for took in rounds) / sum(took[below] for took in rounds)
            shown.append(f"{label} {middle:.3f} ({low:.3f} to {high:.3f}), of the sums {total:.3f}")
        print(f"  {clients:3} clients: {'; '.join(shown)}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
