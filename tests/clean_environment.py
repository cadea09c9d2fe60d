"""The environment for a server that a test starts."""

from __future__ import annotations

import os

LEFT_BY_ENGINES = ("VLLM_", "ORTHRUS_PRELOADED", "LD_PRELOAD", "PROMETHEUS_", "TORCHINDUCTOR_")


def inherited() -> dict[str, str]:
    """This process's environment without what the engines of earlier tests in it have set."""
    return {name: value for name, value in os.environ.items() if not name.startswith(LEFT_BY_ENGINES)}
