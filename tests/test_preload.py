"""What is put in LD_PRELOAD, when a process starts again, and that it happens once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orthrus import preload

IOMP = Path("/venv/lib/libiomp5.so")
TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")

PROBE = """
import json, os, sys
from pathlib import Path
from orthrus import preload
preload.default_libraries = lambda: [Path(sys.argv[1])]
preload.reexec_with_preload()
print(json.dumps({"argv": sys.argv, "preload": os.environ["LD_PRELOAD"], "guard": os.environ[preload.GUARD],
                  "flags": sys.flags.dont_write_bytecode}))
"""


def test_libraries_come_before_what_was_preloaded() -> None:
    env = {"LD_PRELOAD": "/opt/other.so", "HOME": "/home/user"}
    result = preload.preload_environment(env, [TCMALLOC, IOMP])
    assert result == {"LD_PRELOAD": f"{TCMALLOC}:{IOMP}:/opt/other.so", "HOME": "/home/user"}
    assert env["LD_PRELOAD"] == "/opt/other.so"


def test_nothing_to_preload_leaves_the_environment_alone() -> None:
    assert preload.preload_environment({"A": "1"}, []) == {"A": "1"}


@pytest.mark.parametrize("other", ["libiomp5.so", "libomp.so.5", "libgomp-abc.so.1"])
def test_a_second_openmp_is_never_added(other: str) -> None:
    env = {"LD_PRELOAD": f"/x/{other}"}
    assert preload.preload_environment(env, [IOMP]) == env


@pytest.mark.parametrize("other", ["libtcmalloc.so.4", "libtcmalloc_minimal.so.4"])
def test_a_second_tcmalloc_is_never_added(other: str) -> None:
    env = {"LD_PRELOAD": f"/x/{other}"}
    assert preload.preload_environment(env, [TCMALLOC]) == env


@pytest.mark.parametrize("folder", ["/with space", "/with:colon"])
def test_a_path_ld_preload_cannot_express_is_left_out(folder: str) -> None:
    assert preload.preload_environment({}, [Path(folder) / "libiomp5.so"]) == {}


def test_libiomp5_is_found_in_the_environment(tmp_path: Path) -> None:
    assert preload.find_libiomp5(tmp_path) is None
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libiomp5.so"
    library.touch()
    assert preload.find_libiomp5(tmp_path) == library


def test_the_minimal_tcmalloc_is_preferred(tmp_path: Path) -> None:
    assert preload.find_tcmalloc([tmp_path]) is None
    full, minimal = tmp_path / "libtcmalloc.so.4", tmp_path / "libtcmalloc_minimal.so.4"
    full.touch()
    assert preload.find_tcmalloc([tmp_path / "absent", tmp_path]) == full
    minimal.touch()
    assert preload.find_tcmalloc([tmp_path / "absent", tmp_path]) == minimal


@pytest.mark.parametrize(
    ("version_file", "accelerator"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu = None\n", None),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "cuda"),
        ("cuda = None\nhip = '6.4'\n", "hip"),
    ],
)
def test_accelerator_is_read_from_torchs_version_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version_file: str, accelerator: str | None
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text(version_file)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert preload.torch_accelerator() == accelerator


def test_no_torch_is_no_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert preload.torch_accelerator() is None


def test_nothing_is_preloaded_beside_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "torch_accelerator", lambda: "cuda")
    monkeypatch.setattr(preload, "find_libiomp5", lambda: IOMP)
    monkeypatch.setattr(preload, "find_tcmalloc", lambda: TCMALLOC)
    assert preload.default_libraries() == []
    monkeypatch.setattr(preload, "torch_accelerator", lambda: None)
    assert preload.default_libraries() == [TCMALLOC, IOMP]


def test_no_second_start_under_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("started again")

    monkeypatch.setattr(os, "execve", refuse)
    monkeypatch.setattr(preload, "default_libraries", lambda: [IOMP])
    monkeypatch.setenv(preload.GUARD, "1")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    preload.reexec_with_preload()


def test_no_second_start_when_all_is_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("started again")

    monkeypatch.setattr(os, "execve", refuse)
    monkeypatch.setattr(preload, "default_libraries", lambda: [IOMP])
    monkeypatch.delenv(preload.GUARD, raising=False)
    monkeypatch.setenv("LD_PRELOAD", str(IOMP))
    preload.reexec_with_preload()


def test_a_real_process_starts_again_once_with_its_arguments(tmp_path: Path) -> None:
    library = preload.find_libiomp5()
    assert library is not None, "the CPU environment brings intel-openmp"
    script = tmp_path / "probe.py"
    script.write_text(PROBE)
    env = {key: value for key, value in os.environ.items() if key not in {"LD_PRELOAD", preload.GUARD}}
    arguments = [str(library), "--name", "two words", ""]
    done = subprocess.run(
        [sys.executable, "-B", str(script), *arguments], env=env, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {
        "argv": [str(script), *arguments],
        "preload": str(library),
        "guard": "1",
        "flags": 1,
    }
