"""What `orthrus doctor` looks at: facts about this machine and environment, gathered in one pass.

Packages are imported in a process of their own, so that one that breaks (or ends its interpreter with
an illegal instruction) becomes a fact instead of ending the doctor.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orthrus
from orthrus import models, preload
from orthrus.models.cache import cache_root

PACKAGES = ("torch", "transformers", "vllm")
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")

PROBE = """
import importlib, importlib.util, json, sys
required, optional = sys.argv[1].split(","), sys.argv[2].split(",")
def tell(**result):
    print("FOUND " + json.dumps(result), flush=True)
for name in required + optional:
    if importlib.util.find_spec(name) is None:
        continue
    tell(name=name)
    try:
        version = str(importlib.import_module(name).__version__)
        sees_gpu = name == "torch" and sys.modules["torch"].cuda.is_available()
        tell(name=name, version=version, sees_gpu=sees_gpu)
    except BaseException as error:
        tell(name=name, error=f"{type(error).__name__}: {error}")
"""


@dataclass(frozen=True)
class Package:
    """How importing one installed package went: `version` or, where it failed, `error`."""

    version: str = ""
    error: str = ""


@dataclass(frozen=True)
class Facts:
    """Everything the checks of orthrus.doctor need; tests build it by hand.

    `packages` has no entry for a package that is not installed. `memory` is in bytes: what this process
    may still use, the limits of its control group included. `accelerator` is what torch was built for
    ("cuda", "hip", "xpu"), None for a CPU build. `sample_models` says which are in the cache, whole.
    """

    python: tuple[int, int, int]
    system: str
    machine: str
    cores: int
    memory: int
    cpu_flags: frozenset[str]
    packages: Mapping[str, Package]
    accelerator: str | None
    sees_gpu: bool
    libiomp5: Path | None
    tcmalloc: Path | None
    compiler: str | None
    cache: Path
    sample_models: Mapping[str, bool] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    orthrus: str = orthrus.__version__

    @property
    def on_cpu(self) -> bool:
        """True where the model runs on the CPU."""
        return self.accelerator is None


def import_packages(timeout: float = 300.0) -> tuple[dict[str, Package], bool]:
    """Import PACKAGES and COMPANIONS in a new process: what became of each, and whether torch sees a GPU."""
    command = [sys.executable, "-c", PROBE, ",".join(PACKAGES), ",".join(COMPANIONS)]
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    status: int | None
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=timeout, check=False)
        output, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as expired:
        raw = expired.stdout or b""
        output, status = raw if isinstance(raw, str) else raw.decode(), None
    return read_probe(output, status)


def read_probe(output: str, status: int | None) -> tuple[dict[str, Package], bool]:
    """Turn the probe's lines and exit status (None: it took too long) into packages; see import_packages."""
    packages: dict[str, Package] = {}
    sees_gpu = False
    for line in output.splitlines():
        if not line.startswith("FOUND "):
            continue
        result = json.loads(line.removeprefix("FOUND "))
        packages[result["name"]] = Package(result.get("version", ""), result.get("error", ""))
        sees_gpu = sees_gpu or bool(result.get("sees_gpu"))
    if status is None:
        end = "importing it did not end"
    elif status < 0:
        end = f"importing it ended Python with {signal.Signals(-status).name}"
    else:
        end = f"importing it ended Python with status {status}"
    for name, package in packages.items():
        if not package.version and not package.error:
            packages[name] = Package(error=end)
    return packages, sees_gpu


def read_cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The instruction-set flags of the first core ("flags" on x86, "Features" on Arm); empty if unknown."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def available_memory(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes this process may still use: the system's free memory or what its control group leaves."""
    available = 0
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except OSError:
        return 0
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except OSError:
        return available
    return available if limit == "max" else max(0, min(available, int(limit) - used))


def gather() -> Facts:
    """Look at this machine; takes as long as importing vLLM does, a few seconds."""
    packages, sees_gpu = import_packages()
    return Facts(
        python=sys.version_info[:3],
        system=platform.system(),
        machine=platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=available_memory(),
        cpu_flags=read_cpu_flags(),
        packages=packages,
        accelerator=preload.torch_accelerator(),
        sees_gpu=sees_gpu,
        libiomp5=preload.find_libiomp5(),
        tcmalloc=preload.find_tcmalloc(),
        compiler=shutil.which(os.environ.get("CXX", "g++")),
        cache=cache_root(),
        sample_models={name: models.is_present(name) for name in models.SAMPLES},
        env=dict(os.environ),
    )
