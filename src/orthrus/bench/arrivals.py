"""When an open loop sends its requests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def gaps(request_rate: float, burstiness: float, seed: int) -> Iterator[float]:
    """Endless seconds between arrivals: gamma with shape `burstiness` and mean 1 / `request_rate`.

    The distribution of `vllm bench serve` (vllm/benchmarks/serve.py, get_request): burstiness 1 is a Poisson
    process; the gaps' variance is 1 / (burstiness * request_rate**2).
    """
    if not request_rate > 0 or not burstiness > 0:
        raise ValueError(
            f"request_rate ({request_rate}) and burstiness ({burstiness}) must be greater than 0"
        )
    rng = np.random.default_rng([seed, 4])
    scale = 1.0 / (request_rate * burstiness)
    while True:
        yield from rng.gamma(burstiness, scale, 256).tolist()


def arrival_times(
    request_rate: float,
    burstiness: float,
    seed: int,
    seconds: float | None = None,
    count: int | None = None,
) -> list[float]:
    """Arrival times from 0, either all within `seconds` or `count` of them.

    `count` arrivals are stretched to take count / request_rate seconds in all, as `vllm bench serve` does,
    so that seeds differ in the order of gaps and not in the rate.
    """
    source = gaps(request_rate, burstiness, seed)
    if count is not None:
        times = np.cumsum([next(source) for _ in range(count)])
        return [float(time) for time in times * (count / request_rate / times[-1])]
    if seconds is None:
        raise ValueError("seconds or count must be given")
    result: list[float] = []
    now = next(source)
    while now < seconds:
        result.append(now)
        now += next(source)
    return result
