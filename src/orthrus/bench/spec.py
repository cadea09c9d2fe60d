"""SPEC.yaml: one benchmark as pydantic models, with errors that name the field."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, PositiveInt, ValidationError, field_validator, model_validator

from orthrus.bench.peers.command import check_template
from orthrus.bench.shapes import AnyWorkload, Dataset, Mix, Sessions, Strict, Trace, Workload


class SpecError(ValueError):
    """The spec cannot be used; the message names each field by its path."""


class Closed(Strict):
    """`max_concurrency` clients, each with one request open, for some seconds or some requests.

    `split` "requests": clients take the next request of one sequence, so the mix is served as asked for.
    `split` "clients": each client keeps to one kind, so the kinds' rates are independent.
    With phases, `seconds` or `num_prompts` is that of one phase.
    """

    type: Literal["closed"]
    max_concurrency: PositiveInt
    seconds: float | None = Field(default=None, gt=0)
    num_prompts: PositiveInt | None = None
    split: Literal["requests", "clients"] = "requests"

    @model_validator(mode="after")
    def _bounded(self) -> Closed:
        if (self.seconds is None) == (self.num_prompts is None):
            raise ValueError("exactly one of seconds and num_prompts must be given")
        return self

    def label(self) -> str:
        """Short name, unique among a spec's loads."""
        return f"c{self.max_concurrency}" + ("-by-clients" if self.split == "clients" else "")


class Open(Strict):
    """Arrivals at `request_rate` per second whatever the server does, as `vllm bench serve` makes them.

    Gaps are gamma distributed with shape `burstiness`: 1 is Poisson, below 1 burstier, above 1 more even.
    `max_concurrency` holds arrivals back while so many requests are open.
    """

    type: Literal["open"]
    request_rate: float = Field(gt=0)
    burstiness: float = Field(default=1.0, gt=0)
    max_concurrency: PositiveInt | None = None
    seconds: float | None = Field(default=None, gt=0)
    num_prompts: PositiveInt | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Open:
        if (self.seconds is None) == (self.num_prompts is None):
            raise ValueError("exactly one of seconds and num_prompts must be given")
        return self

    def label(self) -> str:
        """Short name, unique among a spec's loads."""
        burst = "" if self.burstiness == 1 else f"-b{self.burstiness:g}"
        return f"r{self.request_rate:g}{burst}" + (
            f"-c{self.max_concurrency}" if self.max_concurrency else ""
        )


class Replay(Strict):
    """Arrivals at a trace's own times."""

    type: Literal["trace"]
    max_concurrency: PositiveInt | None = None

    def label(self) -> str:
        """Short name, unique among a spec's loads."""
        return "trace"


AnyLoad = Annotated[Closed | Open | Replay, Field(discriminator="type")]


class Adapter(Strict):
    """A LoRA adapter to serve: a folder, or random weights of a rank on every linear layer."""

    path: Path | None = None
    rank: PositiveInt | None = None

    @model_validator(mode="after")
    def _one(self) -> Adapter:
        if (self.path is None) == (self.rank is None):
            raise ValueError("exactly one of path and rank must be given")
        return self


class Server(Strict):
    """How every engine of every topology is started; `flags` are vLLM's, given to all of them."""

    dtype: str = "bfloat16"
    max_model_len: PositiveInt = 2048
    kv_cache_gib: float = Field(default=2.0, gt=0, description="per device, shared by its engines")
    pooling: Literal["mean", "last", "cls"] = "mean"
    flags: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    adapters: dict[str, Adapter] = Field(default_factory=dict)
    start_seconds: float = Field(default=300.0, gt=0)


class Devices(Strict):
    """What a server is pinned to: CPU cores or GPUs, by number; one server, or a pair, on each."""

    kind: Literal["cpu", "gpu"] = "cpu"
    ids: list[int] = Field(default=[0, 1], min_length=1)

    @field_validator("ids")
    @classmethod
    def _distinct(cls, ids: list[int]) -> list[int]:
        if len(set(ids)) != len(ids) or min(ids) < 0:
            raise ValueError(f"must be different numbers from 0, not {ids}")
        return ids


TOPOLOGY = re.compile(
    r"^(dedicated:\d+\+\d+|colocated|unified-homo|unified-hetero|orthrus|disagg-pd"
    r"|external:https?://[^,]+(,https?://[^,]+)?|command:(?s:.*)\S(?s:.*))$"
)


class Topology(Strict):
    """A topology by name, with flags for its own engines only. A plain string in the YAML is the name."""

    topology: str
    label: str = ""
    flags: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {"topology": value} if isinstance(value, str) else value

    @field_validator("topology")
    @classmethod
    def _known(cls, value: str) -> str:
        if not TOPOLOGY.match(value):
            raise ValueError(
                f"{value!r} is no topology; allowed: dedicated:K+M (K embed, M generate), colocated, "
                "unified-homo, unified-hetero, orthrus, disagg-pd, external:GENERATE_URL[,EMBED_URL], "
                "command:SERVER_COMMAND"
            )
        return value

    @model_validator(mode="after")
    def _startable(self) -> Topology:
        if self.topology.startswith("command:"):
            if not self.label:
                raise ValueError("a command: topology needs a label")
            check_template(self.topology.removeprefix("command:"))
        return self

    @property
    def name(self) -> str:
        """The label, or the topology's name, fit for a file name."""
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", self.label or self.topology)


class Work(Strict):
    """What a token counts in work-weighted throughput. All 1: tokens through the model, thus FLOPs."""

    embed_token: float = Field(default=1.0, ge=0)
    prefill_token: float = Field(default=1.0, ge=0)
    decode_token: float = Field(default=1.0, ge=0)


GOODPUT = ("ttft", "tpot", "e2el", "embed_e2el")


class Spec(Strict):
    """One benchmark: every workload on every topology under every load, `repetitions` times."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    model: str
    seed: int = Field(default=0, ge=0)
    repetitions: PositiveInt = 3
    num_warmups: int = Field(default=8, ge=0, description="requests before each cell, not recorded")
    drain_seconds: float = Field(default=60.0, ge=0, description="wait for open requests after a window")
    routing: Literal["round-robin", "least-outstanding"] = "least-outstanding"
    server: Server = Server()
    devices: Devices = Devices()
    workloads: list[AnyWorkload] = Field(min_length=1)
    topologies: list[Topology] = Field(min_length=1)
    load: list[AnyLoad] = Field(min_length=1)
    extra_body: dict[str, Any] = Field(
        default={"temperature": 0, "ignore_eos": True}, description="added to every generation's body"
    )
    goodput: dict[str, float] = Field(default_factory=dict)
    work: Work = Work()
    x_label: str | None = None

    @field_validator("workloads", mode="before")
    @classmethod
    def _mix_by_default(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [{"type": "mix", **item} if isinstance(item, dict) else item for item in value]

    @field_validator("goodput")
    @classmethod
    def _known_goals(cls, goals: dict[str, float]) -> dict[str, float]:
        for key, value in goals.items():
            if key not in GOODPUT or value <= 0:
                raise ValueError(
                    f"{key}: {value:g} is not allowed; keys: {', '.join(GOODPUT)}, values in milliseconds"
                )
        return goals

    @model_validator(mode="after")
    def _consistent(self) -> Spec:
        for field, names in (
            ("workloads", [workload.name for workload in self.expanded()]),
            ("topologies", [topology.name for topology in self.topologies]),
            ("load", [load.label() for load in self.load]),
        ):
            twice = [name for name, times in Counter(names).items() if times > 1]
            if twice:
                raise ValueError(f"{field}: the names {twice} occur more than once; give them other names")
        served = set(self.server.adapters)
        for workload in self.expanded():
            asked = {workload.embed.adapter, workload.generate.adapter} - {None}
            if asked - served and not self._all_external():
                raise ValueError(
                    f"workloads: {workload.name} asks for the adapters {sorted(map(str, asked - served))}, "
                    f"server.adapters has {sorted(served)}"
                )
            if not any(fits(workload, load) for load in self.load):
                raise ValueError(
                    f"workloads: {workload.name} fits no load; a trace needs one of type trace, "
                    "sessions one that is not split by clients, the rest closed or open"
                )
        return self

    def _all_external(self) -> bool:
        return all(topology.topology.startswith("external:") for topology in self.topologies)

    def expanded(self) -> list[AnyWorkload]:
        """The workloads with sweeps written out."""
        result: list[AnyWorkload] = []
        for workload in self.workloads:
            result.extend(workload.expanded() if isinstance(workload, Mix) else [workload])
        return result


def fits(workload: Workload, load: Closed | Open | Replay) -> bool:
    """Whether a workload can be driven by a load: traces by their own times, the rest by the others."""
    if isinstance(workload, Sessions) and isinstance(load, Closed) and load.split == "clients":
        return False
    return isinstance(workload, Trace) == isinstance(load, Replay)


def load_spec(path: Path) -> Spec:
    """Read a SPEC.yaml; paths in it are relative to its folder. SpecError names each wrong field."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: not YAML: {error}") from error
    return parse_spec(document, str(path), path.parent)


def parse_spec(document: Any, source: str, folder: Path) -> Spec:
    """Validate a parsed document; `source` is named in errors, relative paths start at `folder`."""
    if not isinstance(document, dict):
        raise SpecError(f"{source}: must be a mapping with at least name, model, workloads, topologies, load")
    try:
        spec = Spec.model_validate(document)
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, item['loc'])) or 'spec'}: {_message(item)}" for item in error.errors()
        ]
        raise SpecError(f"{source} is not a valid spec:\n" + "\n".join(lines)) from error
    return anchored(spec, folder)


def _message(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        return "unknown key"
    return str(item["msg"]).removeprefix("Value error, ")


def anchored(spec: Spec, folder: Path) -> Spec:
    """The spec with dataset and trace paths made absolute; SpecError for a file that is not there."""

    def path_of(path: Path) -> Path:
        full = (folder / path.expanduser()).resolve()
        if not full.is_file():
            raise SpecError(f"{full}: no such file")
        return full

    def lengths(value: Any) -> Any:
        return (
            value.model_copy(update={"dataset": path_of(value.dataset)})
            if isinstance(value, Dataset)
            else value
        )

    workloads = []
    for workload in spec.workloads:
        change: dict[str, Any] = {
            "embed": workload.embed.model_copy(update={"tokens": lengths(workload.embed.tokens)}),
            "generate": workload.generate.model_copy(
                update={"prompt_tokens": lengths(workload.generate.prompt_tokens)}
            ),
        }
        if isinstance(workload, Trace):
            change["path"] = path_of(workload.path)
        workloads.append(workload.model_copy(update=change))
    return spec.model_copy(update={"workloads": workloads})
