"""Workloads of a SPEC.yaml: which requests there are, how long, in which shares."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator


class Strict(BaseModel):
    """Unknown keys are errors: a misspelt option must never be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LogNormal(Strict):
    """Lengths exp(N(ln median, sigma)), rounded, then clipped to [min, max] tokens."""

    median: float = Field(gt=0)
    sigma: float = Field(ge=0)
    min: PositiveInt = 1
    max: PositiveInt

    @model_validator(mode="after")
    def _ordered(self) -> LogNormal:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, more than max ({self.max})")
        return self


class Dataset(Strict):
    """Prompts or lengths from a JSONL file, taken in a seeded order, cut to `max` tokens.

    A line holds `tokens` (a length; the ids are then random), `token_ids`, or `text`, which is tokenised
    with the model's own tokenizer and without special tokens.
    """

    dataset: Path
    max: PositiveInt = 1_000_000


Lengths = PositiveInt | LogNormal | Dataset


class Embed(Strict):
    """One embedding request: its length, and the adapter (a served name) it asks for."""

    tokens: Lengths = 128
    adapter: str | None = None


class Generate(Strict):
    """One generation request: prompt and output lengths; outputs are exact, since end-of-text is ignored."""

    prompt_tokens: Lengths = 64
    output_tokens: PositiveInt | LogNormal = 32
    adapter: str | None = None


class Workload(Strict):
    """What every workload has. `x` is its place on a plot's axis."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    embed: Embed = Embed()
    generate: Generate = Generate()
    x: float | None = None

    def kinds(self) -> set[str]:
        """The kinds of request in it: "embed", "generate" or both."""
        return {"embed", "generate"}


SWEEPABLE = ("embed_share", "embed_tokens", "prompt_tokens", "output_tokens")


class Sweep(Strict):
    """Make one workload of each value. Exactly one list is given."""

    embed_share: list[Annotated[float, Field(ge=0, le=1)]] | None = None
    embed_tokens: list[PositiveInt] | None = None
    prompt_tokens: list[PositiveInt] | None = None
    output_tokens: list[PositiveInt] | None = None

    @model_validator(mode="after")
    def _one(self) -> Sweep:
        if len([name for name in SWEEPABLE if getattr(self, name)]) != 1:
            raise ValueError(f"exactly one of {', '.join(SWEEPABLE)} must be a list of values")
        return self

    def chosen(self) -> tuple[str, list[float]]:
        """Name and values of the list that is swept."""
        name = next(name for name in SWEEPABLE if getattr(self, name))
        return name, list(getattr(self, name))


class Mix(Workload):
    """A share of embedding requests among generations, by number of requests."""

    type: Literal["mix"] = "mix"
    embed_share: float = Field(default=0.5, ge=0, le=1)
    sweep: Sweep | None = None

    def kinds(self) -> set[str]:
        return ({"embed"} if self.embed_share > 0 else set()) | (
            {"generate"} if self.embed_share < 1 else set()
        )

    def expanded(self) -> list[Mix]:
        """Itself, or a workload for each swept value, named after it."""
        if self.sweep is None:
            return [self]
        key, values = self.sweep.chosen()
        return [self._at(key, value) for value in values]

    def _at(self, key: str, value: float) -> Mix:
        change: dict[str, Any] = {"sweep": None, "name": f"{self.name}-{value:g}", "x": value}
        if key == "embed_share":
            change["embed_share"] = value
        elif key == "embed_tokens":
            change["embed"] = self.embed.model_copy(update={"tokens": value})
        else:
            change["generate"] = self.generate.model_copy(update={key: value})
        return self.model_copy(update=change)


class Phases(Workload):
    """Mixes one after another; a phase begins when the one before has ended (paper, section 5.4)."""

    type: Literal["phases"]
    embed_shares: list[Annotated[float, Field(ge=0, le=1)]] = Field(default=[0.1, 0.5, 0.9], min_length=1)


class Sessions(Workload):
    """Iter-RetGen: each session embeds a query, searches, generates, and does so `rounds` times.

    The search is a pause of `search_seconds`; a client has one request open at a time.
    """

    type: Literal["sessions"]
    rounds: PositiveInt = 3
    search_seconds: float = Field(default=0.0, ge=0)


class Trace(Workload):
    """Replay of a JSONL file: a line is {"at": seconds, "kind": "embed" | "generate", "tokens": n,
    "output_tokens": n (generate), "adapter": name (optional)}.
    """

    type: Literal["trace"]
    path: Path
    speed: float = Field(default=1.0, gt=0)


AnyWorkload = Annotated[Mix | Phases | Sessions | Trace, Field(discriminator="type")]
