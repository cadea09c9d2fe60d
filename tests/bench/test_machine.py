import platform

import orthrus
from orthrus.bench.machine import facts


def test_a_report_can_name_machine_and_versions():
    found = facts()
    assert found["python"] == platform.python_version()
    assert found["orthrus"].startswith(orthrus.__version__)
    assert found["memory"].endswith(" GiB")
    assert found["processor"]
    assert all(isinstance(value, str) for value in found.values())
