"""Topologies as data: which servers run on which device, with which command. Nothing is started here.

Every topology gets the same model, dtype and flags, and the same KV memory on a device: two servers that
share a device have half each. So does a device's other memory, in so far as an engine can be told.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orthrus.bench.peers.command import filled
from orthrus.bench.shapes import Workload
from orthrus.bench.spec import Devices, Server, SpecError, Topology

GIB = 2**30
POLICIES = {"unified-homo": "homogeneous", "unified-hetero": "fcfs", "orthrus": "ibs"}
ROLE_KINDS = {"embed": {"embed"}, "generate": {"generate"}, "prefill": {"generate"}}


@dataclass(frozen=True)
class Plan:
    """One server to start. `device` is an id of the spec's devices; `env` is added to the environment."""

    name: str
    device: int
    roles: tuple[str, ...]
    command: tuple[str, ...]
    env: dict[str, str]
    port: int
    peer: bool = False
    """Another engine's own command: `${NAME}` in it is of our environment; its processes are all engine."""

    @property
    def url(self) -> str:
        """Base URL without /v1."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Layout:
    """A topology ready to start: plans, and base URLs by role."""

    plans: list[Plan]
    embed: list[str] = field(default_factory=list)
    generate: list[str] = field(default_factory=list)
    prefill: list[str] = field(default_factory=list)


def serves(topology: Topology, workload: Workload) -> bool:
    """Whether a topology has servers for every kind of the workload: `dedicated:1+0` only embeds."""
    have = {"embed", "generate"}
    if topology.topology.startswith("dedicated:"):
        embed, generate = _split(topology.topology)
        have = ({"embed"} if embed else set()) | ({"generate"} if generate else set())
    return workload.kinds() <= have


def check_devices(topology: Topology, devices: Devices) -> None:
    """SpecError when a topology does not fit the number of devices."""
    count = len(devices.ids)
    if topology.topology.startswith("dedicated:"):
        wanted = sum(_split(topology.topology))
        if wanted == 0 or wanted > count:
            raise SpecError(
                f"{topology.topology} needs {wanted or 'at least 1'} devices, devices.ids has {count}"
            )
    if topology.topology == "disagg-pd" and count < 2:
        raise SpecError(f"disagg-pd needs at least 2 devices, devices.ids has {count}")


def layout(
    topology: Topology,
    model: str,
    server: Server,
    devices: Devices,
    ports: Callable[[], int],
    scratch: Path | None = None,
) -> Layout:
    """The servers of a topology on the given devices.

    `ports` gives a free port at each call; `scratch` is a folder for KV blocks on their way between servers
    (disagg-pd only).
    """
    check_devices(topology, devices)
    kind = topology.topology
    if kind.startswith("external:"):
        generate, _, embed = kind.removeprefix("external:").partition(",")
        return Layout([], [(embed or generate).rstrip("/")], [generate.rstrip("/")])
    make = _Maker(topology, model, server, devices, ports)
    plans: list[Plan] = []
    if kind.startswith("dedicated:"):
        embed_count, generate_count = _split(kind)
        for place, device in enumerate(devices.ids[: embed_count + generate_count]):
            plans.append(make.stock(device, "embed" if place < embed_count else "generate", 1))
    elif kind == "colocated":
        for device in devices.ids:
            plans += [make.stock(device, "embed", 2), make.stock(device, "generate", 2)]
    elif kind.startswith("command:"):
        plans = [make.peer(device, kind.removeprefix("command:")) for device in devices.ids]
    elif kind == "disagg-pd":
        if scratch is None:
            raise ValueError("disagg-pd needs a scratch folder")
        plans = _disaggregated(make, devices.ids, scratch)
    else:
        plans = [make.orthrus(device, POLICIES[kind]) for device in devices.ids]
    urls: dict[str, list[str]] = {role: [] for role in ROLE_KINDS}
    for plan in plans:
        for role in plan.roles:
            urls[role].append(plan.url)
    return Layout(plans, urls["embed"], urls["generate"], urls["prefill"])


def _split(topology: str) -> tuple[int, int]:
    embed, generate = topology.removeprefix("dedicated:").split("+")
    return int(embed), int(generate)


def _disaggregated(make: _Maker, ids: Sequence[int], scratch: Path) -> list[Plan]:
    """Prefill and decode engines and an embedder; on two devices the embedder shares the prefill's device."""
    connector = json.dumps(
        {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(scratch)},
        }
    )
    # Only whole blocks travel, so small ones: 32 is the least that the CPU's attention takes.
    transfer = ("--block-size=32", f"--kv-transfer-config={connector}")
    prefill, *rest = ids
    if len(ids) == 2:
        embedder = make.stock(prefill, "embed", 2)
        prefiller = make.stock(prefill, "prefill", 2, transfer)
    else:
        embedder = make.stock(rest.pop(0), "embed", 1)
        prefiller = make.stock(prefill, "prefill", 1, transfer)
    return [embedder, prefiller, *(make.stock(device, "generate", 1, transfer) for device in rest)]


@dataclass(frozen=True)
class _Maker:
    topology: Topology
    model: str
    server: Server
    devices: Devices
    ports: Callable[[], int]

    def stock(self, device: int, role: str, sharing: int, more: tuple[str, ...] = ()) -> Plan:
        """A stock vLLM server for one role; `sharing` servers share the device."""
        flags = more
        if role == "embed":
            pooling = json.dumps({"pooling_type": self.server.pooling.upper()})
            flags = ("--runner=pooling", "--convert=embed", f"--pooler-config={pooling}", *more)
        return self._plan(device, (role,), "orthrus.server.stock", flags, sharing)

    def orthrus(self, device: int, policy: str) -> Plan:
        """An Orthrus server, alone on its device, for both kinds."""
        flags = (f"--policy={policy}", f"--pooling={self.server.pooling}")
        return self._plan(device, ("embed", "generate"), "orthrus.server.command", flags, 1)

    def peer(self, device: int, template: str) -> Plan:
        """Another engine's server for both kinds, by its own command; our vLLM flags are not for it."""
        port = self.ports()
        values = {"port": str(port), "device": str(device), "model": self.model, "dtype": self.server.dtype}
        return Plan(
            name=f"embed+generate-on-{self.devices.kind}{device}",
            device=device,
            roles=("embed", "generate"),
            command=(*filled(template, values), *self.topology.flags),
            env=dict(self.server.env),
            port=port,
            peer=True,
        )

    def _plan(
        self, device: int, roles: tuple[str, ...], module: str, flags: tuple[str, ...], sharing: int
    ) -> Plan:
        port = self.ports()
        cpu = self.devices.kind == "cpu"
        shared: list[str] = [
            f"--port={port}",
            "--host=127.0.0.1",
            f"--dtype={self.server.dtype}",
            f"--max-model-len={self.server.max_model_len}",
            f"--kv-cache-memory-bytes={int(self.server.kv_cache_gib * GIB / sharing)}",
        ]
        if not cpu and sharing > 1:
            # vLLM refuses to start unless this part of the memory is free; the KV cache is set above.
            shared.append(f"--gpu-memory-utilization={0.9 / sharing:.2f}")
        env = {"VLLM_CPU_OMP_THREADS_BIND" if cpu else "CUDA_VISIBLE_DEVICES": str(device)}
        return Plan(
            name=f"{'+'.join(roles)}-on-{self.devices.kind}{device}",
            device=device,
            roles=roles,
            command=(
                sys.executable,
                "-m",
                module,
                self.model,
                *shared,
                *flags,
                *self.server.flags,
                *self.topology.flags,
            ),
            env={**env, **self.server.env},
            port=port,
        )
