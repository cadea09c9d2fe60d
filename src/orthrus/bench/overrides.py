"""Command-line changes to a spec: shorter, longer, other loads, other goals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from orthrus.bench.spec import Closed, Open, Spec, SpecError


def override(
    spec: Spec,
    *,
    model: str | None = None,
    dtype: str | None = None,
    seed: int | None = None,
    repetitions: int | None = None,
    seconds: float | None = None,
    num_prompts: int | None = None,
    max_concurrency: int | None = None,
    request_rate: float | None = None,
    burstiness: float | None = None,
    goodput: dict[str, float] | None = None,
    topologies: Sequence[str] | None = None,
) -> Spec:
    """The spec with what is given in place of its own; SpecError when that cannot be.

    `seconds` and `num_prompts` bound every load; `max_concurrency` changes every closed load, `request_rate`
    and `burstiness` every open one. A load that then equals an earlier one is dropped. `topologies` are the
    names of those to keep, in the spec's order.
    """
    if seconds is not None and num_prompts is not None:
        raise SpecError("--seconds and --num-prompts bound the same thing; give one")
    loads: list[dict[str, Any]] = []
    for load in spec.load:
        values = load.model_dump(mode="json")
        if isinstance(load, Closed | Open) and (seconds or num_prompts):
            values |= {"seconds": seconds, "num_prompts": num_prompts}
        if isinstance(load, Closed) and max_concurrency:
            values["max_concurrency"] = max_concurrency
        if isinstance(load, Open):
            values |= {"request_rate": request_rate} if request_rate else {}
            values |= {"burstiness": burstiness} if burstiness else {}
        if values not in loads:
            loads.append(values)
    kinds = {load.type for load in spec.load}
    if max_concurrency and "closed" not in kinds:
        raise SpecError("--max-concurrency: the spec has no closed load")
    if (request_rate or burstiness) and "open" not in kinds:
        raise SpecError("--request-rate, --burstiness: the spec has no open load")
    changes = {"model": model, "seed": seed, "repetitions": repetitions, "goodput": goodput}
    document = spec.model_dump(mode="json") | {k: v for k, v in changes.items() if v is not None}
    if dtype is not None:
        document["server"]["dtype"] = dtype
    if topologies:
        names = [item.name for item in spec.topologies]
        if unknown := sorted(set(topologies) - set(names)):
            raise SpecError(f"--topology {', '.join(unknown)}: the spec has {', '.join(sorted(names))}")
        kept = zip(names, document["topologies"], strict=True)
        document["topologies"] = [item for name, item in kept if name in topologies]
    try:
        return Spec.model_validate(document | {"load": loads})
    except ValidationError as error:
        raise SpecError("; ".join(item["msg"] for item in error.errors())) from error


def parse_goodput(pairs: list[str]) -> dict[str, float]:
    """`KEY:VALUE` in milliseconds, as `vllm bench serve --goodput` takes them."""
    goals = {}
    for pair in pairs:
        key, _, value = pair.partition(":")
        try:
            goals[key] = float(value)
        except ValueError as error:
            raise SpecError(f"--goodput {pair}: must be KEY:MILLISECONDS, as in ttft:200") from error
    return goals
