"""What the servers cost while the client measures: processor time, memory, GPU utilisation.

A server's process tree is split in two: the engine (vLLM titles those processes `VLLM::...`: the scheduler
and the workers) and the front end (HTTP, tokenizer, detokenizer). The engine's worker is bound to its
device's core; on CPU a device's utilisation is the worker's processor time over the window. Another engine
(`Plan.peer`) does not say which of its threads compute, so there everything counts as worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil  # type: ignore[import-untyped]

from orthrus.bench.servers import Running

PERIOD = 1.0
GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)


@dataclass
class TreeCost:
    """Processor seconds and bytes of one server's process tree. PSS shares out what processes share."""

    worker_seconds: float = 0.0
    engine_seconds: float = 0.0
    frontend_seconds: float = 0.0
    rss_bytes: int = 0
    pss_bytes: int = 0


@dataclass
class DeviceUse:
    """One device over a window. `series` holds (seconds from its begin, utilisation 0..1) a second apart."""

    device: int
    utilisation: float
    series: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class ServerUse:
    """One server over a window: processor seconds within it, memory at its end."""

    name: str
    device: int
    cost: TreeCost


@dataclass
class Usage:
    """All servers and devices over a window; `core_busy` is the machine's view, by core number, 0..1."""

    seconds: float
    servers: list[ServerUse]
    devices: list[DeviceUse]
    core_busy: dict[int, float]


def tree_cost(pid: int, memory: bool = True, peer: bool = False) -> TreeCost:
    """The cost so far of the process `pid` and its descendants; zeros if it has gone.

    `peer`: all of them count as worker.
    """
    cost = TreeCost()
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return cost
    for process in family:
        with suppress(*GONE):
            seconds = sum(process.cpu_times()[:2])
            title = " ".join(process.cmdline()[:1])
            if peer or title.startswith("VLLM::"):
                cost.engine_seconds += seconds
                cost.worker_seconds += seconds if peer or title.startswith("VLLM::Worker") else 0.0
            else:
                cost.frontend_seconds += seconds
            if memory:
                info = process.memory_full_info()
                cost.rss_bytes += info.rss
                cost.pss_bytes += info.pss
    return cost


def _cost(server: Running, memory: bool = True) -> TreeCost:
    return tree_cost(server.process.pid, memory, server.plan.peer)


class Meter:
    """Reads the servers' costs when the window begins and ends, and once a second between."""

    def __init__(self, servers: Sequence[Running], gpus: bool) -> None:
        """`gpus`: devices are GPUs, so their utilisation comes from NVML."""
        self._servers = servers
        self._devices = sorted({server.plan.device for server in servers})
        self._nvml = _Nvml(self._devices) if gpus else None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._series: dict[int, list[tuple[float, float]]] = {device: [] for device in self._devices}

    def begin(self) -> None:
        """Take the first readings."""
        self._before = [_cost(server, memory=False) for server in self._servers]
        self._cores = psutil.cpu_times(percpu=True)
        self._begin = time.monotonic()
        self._thread.start()

    def end(self) -> Usage:
        """Take the last readings; call once."""
        seconds = time.monotonic() - self._begin
        after = [_cost(server, memory=False) for server in self._servers]
        cores = psutil.cpu_times(percpu=True)
        self._stop.set()
        self._thread.join()
        uses = []
        for server, old, new in zip(self._servers, self._before, after, strict=True):
            memory = _cost(server)
            cost = TreeCost(
                worker_seconds=new.worker_seconds - old.worker_seconds,
                engine_seconds=new.engine_seconds - old.engine_seconds,
                frontend_seconds=new.frontend_seconds - old.frontend_seconds,
                rss_bytes=memory.rss_bytes,
                pss_bytes=memory.pss_bytes,
            )
            uses.append(ServerUse(server.plan.name, server.plan.device, cost))
        devices = [DeviceUse(d, self._utilisation(d, uses, seconds), self._series[d]) for d in self._devices]
        busy = {core: _busy(old, new) for core, (old, new) in enumerate(zip(self._cores, cores, strict=True))}
        return Usage(seconds, uses, devices, busy)

    def _utilisation(self, device: int, uses: Sequence[ServerUse], seconds: float) -> float:
        if self._nvml:
            values = [value for _, value in self._series[device]]
            return sum(values) / len(values) if values else self._nvml.utilisation(device)
        return sum(use.cost.worker_seconds for use in uses if use.device == device) / max(seconds, 1e-9)

    def _sample(self) -> None:
        last = self._worker_seconds() if self._nvml is None else {}
        then = self._begin
        while not self._stop.wait(PERIOD):
            spent = self._worker_seconds() if self._nvml is None else {}
            now = time.monotonic()
            if self._nvml:
                values = {device: self._nvml.utilisation(device) for device in self._devices}
            else:
                values = {device: (spent[device] - last[device]) / (now - then) for device in self._devices}
                last = spent
            then = now
            for device, value in values.items():
                self._series[device].append((round(now - self._begin, 3), round(value, 4)))

    def _worker_seconds(self) -> dict[int, float]:
        spent = dict.fromkeys(self._devices, 0.0)
        for server in self._servers:
            spent[server.plan.device] += _cost(server, memory=False).worker_seconds
        return spent


class _Nvml:
    """GPU utilisation by NVML: the share of the last sample period in which a kernel ran."""

    def __init__(self, devices: Sequence[int]) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._handles = {device: pynvml.nvmlDeviceGetHandleByIndex(device) for device in devices}

    def utilisation(self, device: int) -> float:
        """0..1, now."""
        rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handles[device])
        return float(rates.gpu) / 100


def _busy(old: Any, new: Any) -> float:
    total = sum(new) - sum(old)
    idle = (new.idle + new.iowait) - (old.idle + old.iowait)
    return float(1 - idle / total) if total > 0 else 0.0
