"""Cost of PoolingBank.update for one step, for each head and number of requests, on one thread.

    python benchmarks/pooling_step.py --tokens 2048 --hidden 576 --dtype bfloat16 --json pooling_step.json

The yardstick is one product of the same rows with a [hidden, hidden] matrix; a forward pass has hundreds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from orthrus.pooling import BufferedHead, Head, PoolingBank


def median_us(step: Callable[[], object], reset: Callable[[], None], repeats: int) -> float:
    """Median microseconds of `step`, each run after an untimed `reset`."""
    times = []
    for _ in range(repeats + 3):
        reset()
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(times[3:])


def measure(heads: list[Head], hidden: torch.Tensor, requests: int, repeats: int) -> tuple[float, float]:
    """Median microseconds of one update and of one finish; request i has head i modulo the heads."""
    tokens = len(hidden)
    lengths = torch.full((requests,), tokens // requests)
    lengths[0] += tokens - int(lengths.sum())
    slots, starts = torch.arange(requests), torch.zeros(requests, dtype=torch.int64)
    # Room for a partly filled last page of 64 for each request.
    buffered = BufferedHead(lambda states: states[-1], "benchmark", tokens + 64 * requests)
    bank = PoolingBank(requests, hidden.shape[1], "cpu", buffered)

    def open_all() -> None:
        for slot, length in enumerate(lengths.tolist()):
            bank.open(slot, heads[slot % len(heads)], length)

    def update() -> None:
        bank.update(hidden, slots, lengths, starts)

    return (
        median_us(update, open_all, repeats),
        median_us(lambda: bank.finish(slots), lambda: None, repeats),
    )


def main() -> None:
    """Measure, print a table and, on request, write the raw medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=2048, help="embedding rows of the step")
    parser.add_argument("--hidden", type=int, default=576, help="width of the hidden states")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4, 16, 64, 512])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the medians here")
    args = parser.parse_args()
    if not 1 <= min(args.requests) <= max(args.requests) <= args.tokens or args.repeats < 1:
        parser.error("--requests must lie between 1 and --tokens, --repeats must be at least 1")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    hidden = torch.randn(args.tokens, args.hidden).to(dtype)
    matrix = torch.randn(args.hidden, args.hidden).to(dtype)
    product = median_us(lambda: hidden @ matrix, lambda: None, args.repeats)
    mixes = {head.value: [head] for head in Head} | {"all five": list(Head)}
    rows = []
    for name, heads in mixes.items():
        for requests in args.requests:
            update, finish = measure(heads, hidden, requests, args.repeats)
            rows.append({"head": name, "requests": requests, "update_us": update, "finish_us": finish})
    result = {
        "tokens": args.tokens,
        "hidden": args.hidden,
        "dtype": args.dtype,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "product_us": product,
        "rows": rows,
    }
    table = Table(
        title=f"{args.tokens} rows of {args.hidden}, {args.dtype}; one product takes {product:.0f} µs"
    )
    for column in ("head", "requests", "update µs", "of one product", "finish µs"):
        table.add_column(column, justify="left" if column == "head" else "right")
    for row in rows:
        share = f"{row['update_us'] / product:.2f}"
        table.add_row(
            row["head"], str(row["requests"]), f"{row['update_us']:.0f}", share, f"{row['finish_us']:.0f}"
        )
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
