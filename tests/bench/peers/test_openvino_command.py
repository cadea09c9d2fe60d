import subprocess
import sys

import numpy as np
import pytest

from orthrus.bench.peers.openvino.__main__ import parse_cores
from orthrus.bench.peers.openvino.check import cosines
from orthrus.bench.peers.openvino.extra import AdapterError, check_model, properties

WITHOUT_EXTRA = (
    "import runpy, sys; sys.modules['openvino_genai'] = None; sys.argv[1:] = ['a-folder'];"
    "runpy.run_module('orthrus.bench.peers.openvino', run_name='__main__')"
)


def test_without_the_extra_one_line_says_how_to_get_it():
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRA], capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "pip install 'vllm-orthrus[openvino]'" in line


def test_the_adapter_imports_neither_vllm_nor_torch():
    code = (
        "import sys, orthrus.bench.peers.openvino.__main__, orthrus.bench.peers.openvino.app;"
        "print({'vllm', 'torch', 'transformers', 'openvino'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_export_that_lacks_a_part_is_named(tmp_path):
    for part, names in {"generate": ("model", "tokenizer", "detokenizer"), "embed": ("tokenizer",)}.items():
        (tmp_path / part).mkdir()
        for name in names:
            (tmp_path / part / f"openvino_{name}.xml").touch()
    with pytest.raises(AdapterError, match=r"embed lacks openvino_model.xml; .*Peers"):
        check_model(tmp_path)
    (tmp_path / "embed" / "openvino_model.xml").touch()
    check_model(tmp_path)


def test_cores_and_dtype_are_checked():
    assert parse_cores("0,2") == [0, 2]
    for wrong in ("", "a", "0,0", "-1"):
        with pytest.raises(AdapterError, match="--cores"):
            parse_cores(wrong)
    with pytest.raises(AdapterError, match="--dtype half: allowed are bfloat16, float32"):
        properties("half", 1)
    assert properties("float32", 2)["KV_CACHE_PRECISION"] == "f32"
    assert properties("float32", 2)["INFERENCE_NUM_THREADS"] == 2


def test_cosines_keep_a_nan():
    left = np.array([[1, 0], [0.6, 0.8], [np.nan, 1]], dtype=np.float32)
    found = cosines(left, np.array([[0, 1], [0.6, 0.8], [0, 1]], dtype=np.float32))
    assert found[:2] == pytest.approx([0, 1])
    assert np.isnan(found[2])
