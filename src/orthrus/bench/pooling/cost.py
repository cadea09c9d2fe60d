"""What pooling costs: its share of a real step, by head and number of requests, and its memory by head.

The steps are an engine's own: the pooler's time is that of `StepPooler.step` (opening, update and finished
vectors of every request), beside the time of the model's forward pass over the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from orthrus.bench.pooling.engine_process import Job
from orthrus.bench.pooling.inputs import encoded, running
from orthrus.bench.pooling.report import Session
from orthrus.engine.slots import default_embed_slots
from orthrus.pooling.bank import PoolingBank
from orthrus.pooling.buffered import BufferedHead
from orthrus.pooling.heads import Head

AIM = 2.0
"""Percent of the forward pass that pooling may take in a step of 2 048 embedding tokens."""


def first_and_last(states: torch.Tensor) -> torch.Tensor:
    """The buffered head's function here, [n, d] to [d]: cheap, so that the buffer is what costs."""
    return states[0] + states[-1]


def measure(
    model: str,
    tokens: int,
    requests: Sequence[int],
    repeats: int,
    max_num_seqs: int,
    buffer_tokens: int,
    dtype: str,
    session: Session,
) -> dict[str, Any]:
    """Time steps of `tokens` embedding tokens shared by so many requests, `repeats` of each kind.

    `max_num_seqs` and `buffer_tokens` are the engine's settings, which the memory depends on.
    """
    texts = encoded(model)
    kinds = [(head.value, k) for k in requests for head in Head]
    order = kinds * repeats
    rounds = [_prompts(texts, tokens, k, i) for i, (_, k) in enumerate(order)]
    engine = {
        "dtype": dtype,
        "max_model_len": tokens,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": max_num_seqs,
        "enable_prefix_caching": False,
    }
    settings = {
        "policy": "fcfs",
        "pooling_function": f"{__name__}:{first_and_last.__name__}",
        "pooling_buffer_tokens": buffer_tokens,
    }
    job = Job(model, rounds, settings, engine, heads=[head for head, _ in order], timed=True)
    found = session.run(f"steps of {tokens} tokens", job)
    steps = [
        {"head": head, "requests": k, "rows": int(rows), "forward_s": forward, "pooling_s": pooling}
        for (head, k), one in zip(order, found, strict=True)
        for rows, forward, pooling in one.steps.tolist()
    ]
    times = [_times(steps, head, k, tokens) for head, k in kinds]
    memory = memory_by_head(_width(model), dtype, max_num_seqs, buffer_tokens)
    worst = max(row["share_percent"] for row in times)
    session.publish(
        "pooling-cost",
        f"Pooling in steps of {tokens} embedding tokens, {dtype}",
        ("head", "requests", "forward pass", "pooling", "of the forward pass"),
        [
            (
                row["head"],
                str(row["requests"]),
                f"{1000 * row['forward_s']:.1f} ms",
                f"{1000 * row['pooling_s']:.2f} ms",
                f"{row['share_percent']:.3f} %",
            )
            for row in times
        ],
        {"model": model, "tokens": tokens, "dtype": dtype, "times": times, "memory": memory},
        steps,
        (
            f"largest share: {worst:.3f} % (aim: below {AIM:g} %)",
            *(f"memory, {row['head']}: {row['what']}" for row in memory),
        ),
    )
    return {"times": times, "memory": memory}


def memory_by_head(width: int, dtype: str, max_num_seqs: int, buffer_tokens: int) -> list[dict[str, Any]]:
    """Bytes that the pooling state of an engine takes, from state that is really allocated here.

    The streaming heads share one allocation, whichever of them a request asks for.
    """
    slots = max_num_seqs + default_embed_slots(max_num_seqs)
    held = PoolingBank(slots, width).memory_bytes
    head = BufferedHead(None, "benchmark", buffer_tokens, getattr(torch, dtype))
    buffer = PoolingBank(slots, width, buffered=head).memory_bytes - held
    streaming = [
        {
            "head": one.value,
            "bytes_per_request": held // slots,
            "bytes": held,
            "what": f"{held // slots} bytes for each of {slots} requests, {held / 2**20:.2f} MiB in all",
        }
        for one in Head
        if one is not Head.BUFFERED
    ]
    per_token = width * head.dtype.itemsize
    return [
        *streaming,
        {
            "head": Head.BUFFERED.value,
            "bytes_per_token": per_token,
            "bytes": buffer,
            "what": f"{per_token} bytes a token, {buffer / 2**20:.2f} MiB in all for {buffer_tokens} tokens",
        },
    ]


def _prompts(texts: list[list[int]], tokens: int, requests: int, seed: int) -> list[list[int]]:
    """`tokens` tokens of text in so many prompts, of one length but for the first."""
    each = tokens // requests
    lengths = [tokens - each * (requests - 1), *[each] * (requests - 1)]
    return [running(texts, seed + i, length) for i, length in enumerate(lengths)]


def _times(steps: list[dict[str, Any]], head: str, requests: int, tokens: int) -> dict[str, Any]:
    """Medians over the full steps of one kind."""
    mine = [
        step for step in steps if (step["head"], step["requests"], step["rows"]) == (head, requests, tokens)
    ]
    forward = float(np.median([step["forward_s"] for step in mine]))
    pooling = float(np.median([step["pooling_s"] for step in mine]))
    return {
        "head": head,
        "requests": requests,
        "steps": len(mine),
        "forward_s": forward,
        "pooling_s": pooling,
        "share_percent": 100 * pooling / forward,
    }


def _width(model: str) -> int:
    from transformers import AutoConfig

    width: int = AutoConfig.from_pretrained(model).hidden_size
    return width
