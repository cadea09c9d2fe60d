"""LoRA on the CPU backend: tokens/s of the base model, of vLLM's own LoRA and of Orthrus' on one core.

    python benchmarks/lora_cpu.py --kind embed
    python benchmarks/lora_cpu.py --kind decode --requests 4 --tokens 16

Three engines live in one process and take turns, so that a slow spell of the machine hits all three; a
ratio is the median over the rounds of the ratio within a round. Those of CPU time are the ones to trust on
a machine that has other work to do. The adapters have random weights on every linear layer. `--fast-only`
leaves vLLM's own LoRA out, which is about ten times slower than the rest.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the sample model")
    parser.add_argument("--kind", choices=["embed", "decode"], default="embed")
    parser.add_argument("--requests", type=int, default=4, help="requests per round")
    parser.add_argument(
        "--tokens", type=int, default=256, help="tokens per request: prompt (embed) or output (decode)"
    )
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=1, help="adapters, given to the requests in turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the base engine (vLLM never does with LoRA on the CPU)",
    )
    parser.add_argument("--core", default="0", help="CPU core that all engines are bound to")
    parser.add_argument("--fast-only", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print torch.profiler's table for Orthrus")
    return parser.parse_args()


ARGS = parse_args()
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ARGS.core
# Binding to one core leaves torch with as many threads as the machine has cores, all on that one core,
# which costs about 80 us of waiting per matrix product.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the wrapper is swapped inside this process
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402

from orthrus.bench.adapters import random_adapter  # noqa: E402
from orthrus.engine.lora_cpu import install  # noqa: E402


def build(model: Path, lora: bool) -> LLM:
    options: dict[str, Any] = {}
    if lora:
        options = {"enable_lora": True, "max_lora_rank": ARGS.rank, "max_loras": ARGS.adapters}
    return LLM(
        str(model),
        runner="pooling" if ARGS.kind == "embed" else "generate",
        dtype=ARGS.dtype,
        enforce_eager=not ARGS.compile,
        enable_prefix_caching=False,
        max_model_len=2048,
        max_num_batched_tokens=2048,
        max_num_seqs=64,
        **options,
    )


def round_of(engine: LLM, adapters: list[LoRARequest] | None, rng: random.Random) -> tuple[float, float]:
    """Run one round and return its tokens per second of wall time and of this process' CPU time."""
    length = ARGS.tokens if ARGS.kind == "embed" else 8
    prompts = [
        {"prompt_token_ids": [rng.randrange(10, 40_000) for _ in range(length)]} for _ in range(ARGS.requests)
    ]
    lora = [adapters[i % len(adapters)] for i in range(ARGS.requests)] if adapters else None
    wall, cpu = time.perf_counter(), time.process_time()
    if ARGS.kind == "embed":
        engine.embed(prompts, lora_request=lora, use_tqdm=False)
    else:
        sampling = SamplingParams(temperature=0.0, max_tokens=ARGS.tokens, ignore_eos=True, detokenize=False)
        engine.generate(prompts, sampling, lora_request=lora, use_tqdm=False)
    tokens = ARGS.requests * ARGS.tokens
    return tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu)


def print_profile(run: Callable[[], object]) -> None:
    from torch.profiler import profile

    with profile() as recorded:
        run()
    print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))  # noqa: T201


def main() -> None:
    model = ARGS.model
    if model is None:
        from orthrus import models

        model = models.get("smollm2")
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        adapters = [
            LoRARequest(
                f"adapter{i}", i, str(random_adapter(model, ARGS.rank, Path(folder) / str(i), seed=i))
            )
            for i in range(1, ARGS.adapters + 1)
        ]
        engines: dict[str, tuple[LLM, list[LoRARequest] | None]] = {"base": (build(model, False), None)}
        if not ARGS.fast_only:
            engines["stock"] = (build(model, True), adapters)
        install()
        engines["orthrus"] = (build(model, True), adapters)

        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
        for round_number in range(ARGS.rounds + 1):
            for name, (engine, lora) in engines.items():
                rate = round_of(engine, lora, rng)
                if round_number > 0:  # the first round loads the adapter and warms up
                    rates[name].append(rate)
        if ARGS.profile:
            engine, lora = engines["orthrus"]
            print_profile(lambda: round_of(engine, lora, rng))

    def median_rate(name: str, clock: int) -> float:
        return round(statistics.median(rate[clock] for rate in rates[name]), 1)

    def median_ratio(name: str, clock: int) -> float:
        pairs = zip(rates[name], rates["base"], strict=True)
        return round(statistics.median(mine[clock] / base[clock] for mine, base in pairs), 3)

    report = {
        "kind": ARGS.kind,
        "dtype": ARGS.dtype,
        "compiled": ARGS.compile,
        "requests": ARGS.requests,
        "tokens": ARGS.tokens,
        "rank": ARGS.rank,
        "adapters": ARGS.adapters,
        "tokens_per_second": {name: median_rate(name, 0) for name in rates},
        "tokens_per_cpu_second": {name: median_rate(name, 1) for name in rates},
        "ratio_to_base": {name: median_ratio(name, 0) for name in rates},
        "cpu_ratio_to_base": {name: median_ratio(name, 1) for name in rates},
        "rounds": {name: [round(rate[0], 1) for rate in values] for name, values in rates.items()},
    }
    print(json.dumps(report, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
