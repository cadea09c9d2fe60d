"""Every head, Dense layers and truncation against SentenceTransformer.encode on the sample model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_driver import Job, assert_idle, cosine, embed, generate, run, tokens
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

from orthrus.bench.pooling.inputs import passages

pytestmark = pytest.mark.engine

WIDTH = 576
PROJECTED = 192
MODES = {"mean": "mean", "cls": "cls", "last": "lasttoken", "weighted_mean": "weightedmean"}
TRUNCATED = (64, 1)
TEXTS = [
    "x",
    "Whales.",
    *(passage[:length] for passage, length in zip(passages()[:3], (20, 90, 400), strict=True)),
]
TEXTS += [" ".join(passages()[5:9])]


@pytest.fixture(scope="module", params=[True, False], ids=["dense", "plain"])
def checkpoint(
    request: pytest.FixtureRequest, sample_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The sample model with the files that sentence-transformers itself writes for these modules."""
    folder = tmp_path_factory.mktemp("form")
    for file in sample_model.iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file.resolve())
    torch.manual_seed(0)
    dense = [Dense(WIDTH, PROJECTED), Dense(PROJECTED, PROJECTED, bias=False, use_residual=True)]
    modules = [Pooling(WIDTH, "weightedmean"), *(dense if request.param else []), Normalize()]
    entries = [{"name": "0", "type": "sentence_transformers.models.Transformer", "path": ""}]
    for i, module in enumerate(modules, 1):
        path = folder / f"{i}_{type(module).__name__}"
        path.mkdir()
        module.save(str(path))
        kind = f"{type(module).__module__}.{type(module).__name__}"
        entries.append({"name": str(i), "type": kind, "path": path.name})
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


@pytest.fixture(scope="module")
def wanted(checkpoint: Path) -> dict[tuple[str, int | None], np.ndarray]:
    """Vectors [n, d] of TEXTS by head and dimensions; None is the checkpoint's own head at full size."""
    own = SentenceTransformer(str(checkpoint), device="cpu", model_kwargs={"dtype": "float32"})
    found: dict[tuple[str, int | None], np.ndarray] = {("own", None): own.encode(TEXTS, batch_size=1)}
    transformer, _, *after = own
    for head, mode in MODES.items():
        reference = SentenceTransformer(modules=[transformer, Pooling(WIDTH, mode), *after], device="cpu")
        full = reference.encode(TEXTS, batch_size=1)
        found[head, None] = full
        for size in TRUNCATED:
            # What encode(truncate_dim=size, normalize_embeddings=True) does, without the forward passes.
            found[head, size] = full[:, :size] / np.linalg.norm(full[:, :size], axis=1, keepdims=True)
    cut = own.encode(TEXTS[:2], batch_size=1, truncate_dim=64, normalize_embeddings=True)
    np.testing.assert_allclose(found["weighted_mean", 64][:2], cut, atol=1e-6)
    return found


def test_vectors_are_those_of_encode_beside_a_generation(
    engine: Callable[..., Any], checkpoint: Path, wanted: dict[tuple[str, int | None], np.ndarray]
) -> None:
    llm = engine(checkpoint, policy="ibs", settings={"matryoshka": True}, max_model_len=1024)
    encode = llm.get_tokenizer().encode
    prompts = [encode(text) for text in TEXTS]
    assert len(prompts[0]) == 1
    assert max(map(len, prompts)) > 3 * 128, "the longest text should be chunked"
    jobs = [
        Job(f"{head}-{size}-{i}", prompt, embed(None if head == "own" else head, dimensions=size))
        for head, size in wanted
        for i, prompt in enumerate(prompts)
    ]
    got = run(llm, [Job("writer", tokens(0, 30, 49152), generate(40)), *jobs])
    for (head, size), vectors in wanted.items():
        for i, vector in enumerate(vectors):
            ours = got[f"{head}-{size}-{i}"]
            assert ours.shape == vector.shape
            assert cosine(ours, vector) > 0.99999, (head, size, i)
            np.testing.assert_allclose(ours, vector, atol=2e-4, err_msg=f"{head} {size} {i}")
    assert len(got["writer"].tokens[0]) == 40
    assert_idle(llm)
