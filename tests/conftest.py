"""A test whose fixtures load a model or start a real server gets the `engine` mark without saying so."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A loaded machine may take its time over one example.
settings.register_profile("orthrus", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("orthrus")

# A shell starts its background jobs with SIGINT ignored, and every process here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

FOLDERS = {Path(__file__).parent / name for name in ("engine", "server")}
FIXTURES = {"engine", "stock_engine", "sample_model", "tiny_model", "server", "fragile"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent in FOLDERS and FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("engine")
