"""The vocabulary that policies, the engine's scheduler and the simulator share.

Sizes are in tokens throughout. The terms are those of the paper (section 3.2): a batch holds embedding
chunks, prefill chunks and single-token decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Protocol


class Kind(StrEnum):
    """What a row of the batch does."""

    EMBED = "embed"
    PREFILL = "prefill"
    DECODE = "decode"

    # Enum's own is a Python function, and kinds are dictionary keys all over a step.
    __hash__ = str.__hash__


class Refusal(StrEnum):
    """Why the head of a queue cannot be admitted in this step."""

    SEQUENCE_SLOTS = "sequence_slots"
    KV_BLOCKS = "kv_blocks"
    ADAPTER_SLOTS = "adapter_slots"
    POOLING_BUFFER = "pooling_buffer"
    TOKEN_BUDGET = "token_budget"
    """An atomic request (one that may not be chunked) does not fit in what is left of the step."""
    BLOCKED = "blocked"


class WorkItem(NamedTuple):
    """One request as a policy sees it.

    `remaining` counts the prompt tokens still to compute; `order` is its rank of arrival (any comparable
    value, smaller is earlier); `in_flight` says that it already holds its slot and blocks.
    """

    request_id: str
    kind: Kind
    remaining: int
    order: Any
    in_flight: bool


class WorkQueue(Protocol):
    """The requests of one kind: those in flight first, then the waiting ones, each in arrival order.

    Iteration is lazy: a policy that looks at three heads costs three heads, whatever waits behind them.
    """

    @property
    def remaining(self) -> int:
        """Tokens still to compute over all requests, in flight and waiting (a running total)."""
        ...

    def __iter__(self) -> Iterator[WorkItem]: ...


def no_tokens() -> int:
    """No tokens: the `spare` of an engine whose requests take what they were granted, say."""
    return 0


def no_wait(item: WorkItem) -> float:
    """The `wait_s` of an engine without a clock: nobody has waited."""
    return 0.0


class StepView(NamedTuple):
    """What a policy is given in each step.

    `budget` is the step's token budget with the decode reservation already taken off; `decode_tokens` is
    that reservation. `admit` is asked once for each waiting request that a policy wants to start, in the
    order in which it wants them: None admits it (and its slot, blocks and adapter count as taken for
    the rest of this step), a Refusal closes its kind for this step, but for ADAPTER_SLOTS, which passes over
    this request only. `spare` is asked once the budget is used up, and says for how many tokens further
    opportunities are wanted (marked `spare`): an engine uses them when a prefix-cache hit shortens a planned
    prompt. `expected_decode_tokens` says how many output tokens all generations, waiting ones included, are
    still expected to produce; `wait_s` for how many seconds a request has waited since it arrived. Both
    serve options of IBS and are asked only where these are on.
    """

    budget: int
    decode_tokens: int
    embed: WorkQueue
    prefill: WorkQueue
    admit: Callable[[WorkItem], Refusal | None]
    spare: Callable[[], int] = no_tokens
    expected_decode_tokens: Callable[[], int] = no_tokens
    wait_s: Callable[[WorkItem], float] = no_wait


class Chunk(NamedTuple):
    """`tokens` tokens of one request, granted in one step."""

    request_id: str
    kind: Kind
    tokens: int
    spare: bool = False


@dataclass(slots=True)
class Plan:
    """The ordered work of one step. A request may own several chunks; the engine adds them up.

    `decode` False holds the decodes back in this step (the homogeneous baseline's embedding steps).
    """

    chunks: list[Chunk] = field(default_factory=list)
    decode: bool = True
    refused: dict[Kind, Refusal] = field(default_factory=dict)


_TOTAL_NAMES = {kind: f"tokens_{kind}" for kind in Kind}


def totals_by_name(totals: Mapping[Kind, int]) -> dict[str, float]:
    """Tokens run in planned steps, as `Policy.state` names them."""
    return {_TOTAL_NAMES[kind]: float(count) for kind, count in totals.items()}


class Policy(Protocol):
    """Decides the next step's work. Deterministic: equal inputs give equal plans."""

    name: ClassVar[str]

    def plan(self, view: StepView) -> Plan:
        """The order of this step's chunks; never more than `view.budget` tokens without `spare` ones.

        A plan with `decode` False may use the decode reservation too: `budget + decode_tokens`.
        """
        ...

    def settle(self, scheduled: Mapping[Kind, int]) -> None:
        """Tell the policy how many tokens of each kind really ran in the step last planned."""
        ...

    def stand_by(self) -> None:
        """No embedding is in the system, so the engine goes on without plans until one comes."""
        ...

    def state(self) -> Mapping[str, float]:
        """The policy's inspectable numbers (credits and the like) for metrics and traces."""
        ...
