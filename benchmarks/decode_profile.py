"""Where the time of a decode step goes: stock vLLM on one core, a batch of streams, by part and by operator.

    python benchmarks/decode_profile.py --rows 8 14

First the engine's own calls are timed, then torch's profiler splits the forward pass and the sampling into
operators, in further steps (it slows them; its row `profiled step` says by how much). Everything is in one
process, so there is no server in it.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from one_core import bind, model_or_sample


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="checkpoint folder; default: the sample model")
    parser.add_argument("--rows", type=int, nargs="+", default=[8], help="streams in the batch")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30, help="steps timed, and as many profiled")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--core", default="0", help="CPU core that the engine is bound to")
    parser.add_argument("--save", type=Path, help="write every figure to this file, as JSON")
    return parser.parse_args()


ARGS = parse_args()
bind(ARGS.core)

import torch  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402

GROUPS = {
    "matrix products": ("mm", "linear", "onednn", "matmul"),
    "attention and KV cache": ("attention", "attn", "cache"),
    "norms, rotary, activation": ("norm", "rotary", "silu"),
}
PARTS = {
    "schedule": ("scheduler", "schedule"),
    "forward pass": ("model_executor", "execute_model"),
    "sampling": ("model_executor", "sample_tokens"),
    "update": ("scheduler", "update_from_output"),
}


def group_of(operator: str) -> str:
    name = operator.lower()
    return next((group for group, parts in GROUPS.items() if any(p in name for p in parts)), "the others")


def time_parts(core: Any, spent: Counter[str]) -> None:
    """Add up the seconds of the engine core's calls under their names."""
    for name, (owner_name, method_name) in PARTS.items():
        owner = getattr(core, owner_name)
        method = getattr(owner, method_name)

        def timed(*args: Any, _method: Any = method, _name: str = name, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = _method(*args, **kwargs)
            spent[_name] += time.perf_counter() - start
            return result

        setattr(owner, method_name, timed)


def decode(engine: Any, rows: int, tag: str) -> None:
    """Bring `rows` streams to their decodes."""
    params = SamplingParams(max_tokens=10 + 3 * ARGS.steps, temperature=0, ignore_eos=True)
    for row in range(rows):
        prompt = [(7 * row + 13 * at) % 20_000 + 100 for at in range(ARGS.prompt_tokens)]
        engine.add_request(f"{tag}-{row}", {"prompt_token_ids": prompt}, params)
    for _ in range(5):
        engine.step()


def measure(engine: Any, spent: Counter[str], rows: int) -> dict[str, float]:
    """Milliseconds of a step of `rows` decodes, by part and by group of operators."""
    decode(engine, rows, f"rows{rows}")
    steps: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(ARGS.steps):
        spent.clear()
        start = time.perf_counter()
        engine.step()
        whole = time.perf_counter() - start
        steps["step"].append(whole)
        for name in PARTS:
            steps[name].append(spent[name])
        steps["rest of the engine"].append(whole - spent.total())
    found = {name: 1e3 * statistics.median(times) for name, times in steps.items()}

    start = time.perf_counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(ARGS.steps):
            engine.step()
    found["profiled step"] = 1e3 * (time.perf_counter() - start) / ARGS.steps
    for event in profile.key_averages():
        group = f"operators: {group_of(event.key)}"
        found[group] = found.get(group, 0.0) + event.self_cpu_time_total / 1e3 / ARGS.steps
    while engine.has_unfinished_requests():
        engine.step()
    return found


def main() -> None:
    model = model_or_sample(ARGS.model)
    engine = LLM(
        model=str(model),
        dtype=ARGS.dtype,
        max_model_len=2048,
        max_num_seqs=64,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
    ).llm_engine
    spent: Counter[str] = Counter()
    time_parts(engine.engine_core.engine_core, spent)
    found = {rows: measure(engine, spent, rows) for rows in ARGS.rows}
    lines = ["| ms of a step | " + " | ".join(f"{rows} streams" for rows in found) + " |"]
    lines.append("|---|" + "---:|" * len(found))
    for name in next(iter(found.values())):
        cells = " | ".join(f"{each.get(name, 0.0):.1f}" for each in found.values())
        lines.append(f"| {name} | {cells} |")
    sys.stdout.write("\n".join(lines) + "\n")
    if ARGS.save:
        ARGS.save.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
