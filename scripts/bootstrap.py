"""Build `.venv` from requirements/cpu.lock, or do nothing when it is current. Standard library only.

Run by every target of the Makefile: `python3.11 scripts/bootstrap.py`. A stamp in `.venv` records what
it was built from, so a second call only compares a hash. An interrupted call is resumed by the next
one: packages whose installation did not finish are removed from the books and installed again.

Environment: TORCH_INDEX, the address of PyTorch's CPU wheel index, used only for torch and only when
the indexes pip is configured with do not offer the CPU build.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ((3, 11), (3, 12))
PROJECT = "vllm-orthrus"
NETWORK_SIGNS = re.compile(
    r"name resolution|Name or service not known|NewConnectionError|ConnectTimeout|Connection refused"
    r"|Network is unreachable|ProxyError|Read timed out|nodename nor servname",
)
PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)\s*(?:;\s*(?P<marker>.+))?")
CONDITION = re.compile(r'(python_version|platform_machine) == "([^"]+)"')


def say(text: str) -> None:
    """Print one line of progress at once, also into a pipe."""
    sys.stdout.write(f"bootstrap: {text}\n")
    sys.stdout.flush()


def fail(text: str) -> NoReturn:
    """End with one clear message on standard error and status 1."""
    sys.exit(f"bootstrap: {text}")


def canonical(name: str) -> str:
    """A package name as the index compares it: lower case, runs of -_. as one dash."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(lock: Path, python: str, machine: str) -> dict[str, str]:
    """Canonical name -> version of the pins that hold for this Python ("3.11") and machine ("x86_64").

    Only the markers that scripts/relock.py writes are understood; ValueError names any other line.
    """
    facts = {"python_version": python, "platform_machine": machine}
    pins: dict[str, str] = {}
    for number, line in enumerate(lock.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = PIN.fullmatch(line.strip())
        conditions = [] if match is None or not match["marker"] else match["marker"].split(" and ")
        parsed = [CONDITION.fullmatch(condition.strip()) for condition in conditions]
        if match is None or None in parsed:
            raise ValueError(f"{lock.name}, line {number}: not a pin this script understands: {line!r}")
        if all(facts[found[1]] == found[2] for found in parsed if found is not None):
            pins[canonical(match["name"])] = match["version"]
    return pins


def is_finished(info: Path) -> bool:
    """True if pip got to the end of a package: it writes INSTALLER after the files and RECORD last of all."""
    return (info / "INSTALLER").is_file() and (info / "RECORD").is_file()


class Environment:
    """One virtual environment of one checkout, and what is needed to bring it up to date."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self.stamp = self.folder / ".orthrus-stamp"
        self.lock = root / "requirements" / "cpu.lock"

    def python_version(self) -> str:
        """The version ("3.11") pyvenv.cfg names, or "" where there is no usable environment."""
        try:
            config = (self.folder / "pyvenv.cfg").read_text()
        except OSError:
            return ""
        found = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+)", config, re.MULTILINE)
        return found[1] if found and os.access(self.python, os.X_OK) else ""

    def digest(self, python: str) -> str:
        """What the stamp must hold: a change of lock, metadata, Python or place asks for a new look."""
        state = hashlib.sha256()
        for part in (self.lock.read_bytes(), (self.root / "pyproject.toml").read_bytes()):
            state.update(hashlib.sha256(part).digest())
        state.update(f"{python} {platform.machine()} {self.folder}".encode())
        return state.hexdigest()

    def is_current(self) -> bool:
        """True when the stamp matches; costs two small file reads."""
        version = self.python_version()
        try:
            return bool(version) and self.stamp.read_text().strip() == self.digest(version)
        except OSError:
            return False

    def create(self) -> None:
        """Make an empty environment with pip in it, in place of a half-made one."""
        if self.folder.is_symlink() or (self.folder.exists() and not self.looks_like_environment()):
            fail(f"{self.folder} exists and is not a virtual environment; move it away and try again")
        if self.folder.exists():
            say("removing an unfinished or unusable .venv")
            shutil.rmtree(self.folder)
        say(f"creating .venv with Python {platform.python_version()}")
        made = subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=False)
        if made.returncode:
            fail(
                f"{sys.executable} could not create a virtual environment (see above). Debian and Ubuntu "
                "keep this in a package of its own: install python3-venv, or set PYTHON to another Python"
            )

    def looks_like_environment(self) -> bool:
        """True for an environment, finished or not, and for an empty folder: safe to delete."""
        if not self.folder.is_dir():
            return False
        names = {entry.name for entry in self.folder.iterdir()}
        return not names or "pyvenv.cfg" in names or names <= {"bin", "include", "lib", "lib64"}

    def site_packages(self, python: str) -> Path:
        """The folder packages are installed in."""
        return self.folder / "lib" / f"python{python}" / "site-packages"

    def has_pip(self, python: str) -> bool:
        """False where the making of the environment was interrupted: pip comes last in it."""
        infos = list(self.site_packages(python).glob("pip-*.dist-info"))
        return (self.folder / "bin" / "pip").exists() and any(map(is_finished, infos))

    def forget_unfinished(self, python: str) -> None:
        """Delete the metadata of packages that pip was interrupted in, so that it installs them again."""
        for info in self.site_packages(python).glob("*.dist-info"):
            if not is_finished(info):
                say(f"{info.name.removesuffix('.dist-info')} was left unfinished; installing it again")
                shutil.rmtree(info)

    def installed(self, python: str) -> dict[str, str]:
        """Canonical name -> version of what is installed."""
        found = distributions(path=[str(self.site_packages(python))])
        return {canonical(d.metadata["Name"]): d.version for d in found if d.metadata["Name"]}

    def pip(self, *arguments: str) -> tuple[int, str]:
        """Run the environment's pip; returns its status and what it wrote to standard error."""
        ignored = {"PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PYTHONHOME", "PYTHONPATH"}
        clean = {key: value for key, value in os.environ.items() if key not in ignored}
        command = [str(self.python), "-m", "pip", "install", "--no-deps", "--no-input", *arguments]
        with subprocess.Popen(
            [*command, "--disable-pip-version-check"], env=clean, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            errors = []
            for line in process.stderr:
                errors.append(line)
                sys.stderr.write(line)
        return process.returncode, "".join(errors)


@contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Wait until no other bootstrap works on this checkout (an advisory lock on its folder)."""
    handle = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another bootstrap is at work on this checkout; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def explain(errors: str, what: str) -> NoReturn:
    """End with the likeliest reason for pip's failure."""
    if NETWORK_SIGNS.search(errors):
        fail(f"{what} could not be fetched: the package index cannot be reached. Check the network or proxy")
    fail(f"{what} could not be installed (pip's message is above). The next call resumes from here")


def install_torch(environment: Environment, version: str) -> None:
    """Install the CPU build of torch: from pip's configured indexes, else from TORCH_INDEX."""
    say(f"installing torch {version} (about 200 MB)")
    status, errors = environment.pip(f"torch=={version}")
    if status == 0:
        return
    index = os.environ.get("TORCH_INDEX", "")
    if index:
        say("the configured package index does not offer it; trying TORCH_INDEX")
        status, errors = environment.pip("--index-url", index, f"torch=={version}")
        if status:
            explain(errors, f"torch {version} from TORCH_INDEX")
    elif NETWORK_SIGNS.search(errors):
        explain(errors, f"torch {version}")
    else:
        fail(
            f"no configured package index offers torch {version}. Set TORCH_INDEX to PyTorch's CPU wheel "
            "index (its address is on the installation page of PyTorch's web site) and call make again:\n"
            "  TORCH_INDEX=<address> make demo"
        )


def bring_up_to_date(environment: Environment) -> None:
    """Create the environment if need be, install what is missing, then write the stamp."""
    started = time.monotonic()
    version = environment.python_version()
    supported = version in {f"{major}.{minor}" for major, minor in SUPPORTED}
    if not (supported and environment.has_pip(version)):
        environment.create()
        version = environment.python_version()
    environment.stamp.unlink(missing_ok=True)
    environment.forget_unfinished(version)
    wanted = read_lock(environment.lock, version, platform.machine())
    have = environment.installed(version)
    missing = {name: pinned for name, pinned in wanted.items() if have.get(name) != pinned}
    if "torch" in missing:
        install_torch(environment, missing.pop("torch"))
    if missing:
        say(f"installing {len(missing)} of {len(wanted)} packages (a few minutes the first time)")
        status, errors = environment.pip(*(f"{name}=={pinned}" for name, pinned in missing.items()))
        if status:
            explain(errors, "the packages of requirements/cpu.lock")
    say("installing Orthrus itself, editable")
    status, errors = environment.pip("--no-build-isolation", "--quiet", "--editable", str(environment.root))
    if status:
        explain(errors, "Orthrus itself")
    environment.stamp.write_text(environment.digest(version) + "\n")
    say(f".venv is ready ({time.monotonic() - started:.0f} s); to use it: source .venv/bin/activate")


def main() -> int:
    """Check the Python, then build or update the environment unless it is current."""
    if sys.version_info[:2] not in SUPPORTED:
        fail(
            f"{sys.executable} is Python {platform.python_version()}; Orthrus needs 3.11 or 3.12. "
            "Name one: make PYTHON=/path/to/python3.11"
        )
    environment = Environment(ROOT)
    if environment.is_current():
        return 0
    with only_one(ROOT):
        if not environment.is_current():
            bring_up_to_date(environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
