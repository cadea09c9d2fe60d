"""Preload libiomp5 and tcmalloc on CPU: a process can only choose its allocator and OpenMP at its start.

vLLM's CPU worker warns when they are missing (vllm/v1/worker/cpu_worker.py, `init_device`) and binds
threads well only with Intel's OpenMP. Nothing here imports torch or vLLM: it runs before both.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path

GUARD = "ORTHRUS_PRELOADED"
"""Set in the environment of a process that was already started again; its presence forbids a second time."""

TCMALLOC_FOLDERS = tuple(
    Path(folder)
    for folder in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    )
)
TCMALLOC_NAMES = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
LD_PRELOAD_SEPARATORS = frozenset(" :")


def torch_accelerator() -> str | None:
    """The accelerator torch was built for: "cuda", "hip", "xpu", or None for a CPU build or no torch.

    Read from torch/version.py without running it; importing torch here would take seconds and would
    load the wrong OpenMP before it can be replaced.
    """
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).with_name("version.py")
    if not source.is_file():
        return None
    for statement in ast.parse(source.read_text()).body:
        if isinstance(statement, ast.AnnAssign):
            targets: list[ast.expr] = [statement.target]
        elif isinstance(statement, ast.Assign):
            targets = statement.targets
        else:
            continue
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        value = statement.value
        for name in ("cuda", "hip", "xpu"):
            if name in names and isinstance(value, ast.Constant) and value.value is not None:
                return name
    return None


def find_libiomp5(prefix: str | os.PathLike[str] = sys.prefix) -> Path | None:
    """Intel's OpenMP runtime as the intel-openmp wheel installs it: in `lib` of the environment."""
    library = Path(prefix) / "lib" / "libiomp5.so"
    return library if library.is_file() else None


def find_tcmalloc(folders: Iterable[Path] = TCMALLOC_FOLDERS) -> Path | None:
    """tcmalloc from the usual library folders; the minimal build, without the profiler, comes first."""
    found = (folder / name for folder in folders for name in TCMALLOC_NAMES)
    return next((library for library in found if library.is_file()), None)


def default_libraries() -> list[Path]:
    """What is worth preloading on this machine, tcmalloc first; empty where torch drives an accelerator."""
    if not sys.platform.startswith("linux") or torch_accelerator() is not None:
        return []
    found = (find_tcmalloc(), find_libiomp5())
    return [library for library in found if library is not None]


def preload_environment(env: Mapping[str, str], libraries: Iterable[Path] | None = None) -> dict[str, str]:
    """A copy of `env` whose LD_PRELOAD also names `libraries` (default: `default_libraries()`).

    A library is left out when one of its family (libtcmalloc, libiomp5) is in LD_PRELOAD already, when
    another OpenMP (libomp, libgomp) is, since two in one process crash or stall, and when its path holds
    a space or colon, which LD_PRELOAD cannot express.
    """
    present = env.get("LD_PRELOAD", "")
    added: list[str] = []
    for library in default_libraries() if libraries is None else libraries:
        openmp = library.name.startswith("libiomp")
        family = ("libiomp", "libomp", "libgomp") if openmp else (library.name.split(".")[0].split("_")[0],)
        if any(name in present for name in family) or LD_PRELOAD_SEPARATORS & set(str(library)):
            continue
        added.append(str(library))
    result = dict(env)
    if added:
        result["LD_PRELOAD"] = ":".join([*added, *([present] if present else [])])
    return result


def reexec_with_preload() -> None:
    """Start this program again, once, with the libraries preloaded; return if there is nothing to gain.

    The new process replaces this one (same process id, same interpreter options and arguments), so
    call it first thing, before threads, sockets or output exist. OSError if the system refuses.
    """
    if GUARD in os.environ:
        return
    wanted = preload_environment(os.environ)
    if wanted.get("LD_PRELOAD") == os.environ.get("LD_PRELOAD"):
        return
    wanted[GUARD] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], wanted)
