"""Against sentence-transformers' own modules, on the same hidden states (issue 4: the equivalence bar)."""

import json

import pytest
import torch
from pooling_closed_forms import feed, make_bank
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

from orthrus.pooling import Head
from orthrus.pooling.finishing import DenseLayer, finish_vectors
from orthrus.pooling.select import read_recipe

WIDTH = 96
MODES = {Head.MEAN: "mean", Head.WEIGHTED_MEAN: "weightedmean", Head.CLS: "cls", Head.LAST: "lasttoken"}
LENGTHS = [1, 2, 3, 5, 17, 64, 65, 255, 256, 257, 511, 513, 700, 1024, 1300, 2000]


def prompts(dtype):
    generator = torch.Generator().manual_seed(7)
    offset = torch.randn(WIDTH, generator=generator)
    return [(torch.randn(n, WIDTH, generator=generator) + offset).to(dtype) for n in LENGTHS]


def padded(hidden):
    """One padded batch in float64, so that the oracle's own rounding does not count."""
    mask = torch.zeros(len(hidden), max(LENGTHS), dtype=torch.int64)
    states = torch.zeros(len(hidden), max(LENGTHS), WIDTH, dtype=torch.float64)
    for i, rows in enumerate(hidden):
        mask[i, : len(rows)] = 1
        states[i, : len(rows)] = rows.double()
    return {"token_embeddings": states, "attention_mask": mask}


def pooled_in_chunks(head, hidden, chunk):
    bank = make_bank(num_slots=len(hidden), hidden_size=WIDTH)
    for slot, rows in enumerate(hidden):
        bank.open(slot, head, len(rows))
    for start in range(0, max(LENGTHS), chunk):
        alive = [(slot, rows) for slot, rows in enumerate(hidden) if start < len(rows)]
        feed(bank, [(slot, rows, start, min(chunk, len(rows) - start)) for slot, rows in alive])
    return bank.finish(torch.arange(len(hidden)))


def assert_equivalent(got, want):
    cosine = torch.nn.functional.cosine_similarity(got.double(), want.double())
    error = (got.double() - want.double()).norm(dim=1) / want.double().norm(dim=1)
    assert cosine.min() > 0.99999
    assert torch.quantile(error, 0.99) < 1e-3
    # Far inside that bar: the states are the same, so only the sum's rounding is left.
    assert error.max() < 2e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("chunk", [256, 512, 1024])
@pytest.mark.parametrize("head", list(MODES))
def test_every_head_equals_its_sentence_transformers_mode(head, chunk, dtype):
    hidden = prompts(dtype)
    want = Pooling(WIDTH, MODES[head])(padded(hidden))["sentence_embedding"]
    assert_equivalent(pooled_in_chunks(head, hidden, chunk), want)


@pytest.mark.parametrize("safetensors", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_saved_modules_read_back_and_finish_alike(tmp_path, safetensors, residual):
    torch.manual_seed(3)
    modules = [
        Pooling(WIDTH, "weightedmean"),
        Dense(WIDTH, 128, activation_function=torch.nn.GELU(), use_residual=residual),
        Dense(128, 128, bias=False, use_residual=residual),
        Normalize(),
    ]
    entries = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    for i, module in enumerate(modules, 1):
        folder = tmp_path / f"{i}_{type(module).__name__}"
        folder.mkdir()
        module.save(str(folder), safe_serialization=safetensors)
        kind = f"{type(module).__module__}.{type(module).__name__}"
        entries.append({"type": kind, "path": folder.name})
    (tmp_path / "modules.json").write_text(json.dumps(entries))

    hidden = prompts(torch.float32)
    features = padded(hidden)
    for module in modules:
        features = module.double()(features)
    recipe = read_recipe(tmp_path)
    assert (recipe.head, recipe.width, recipe.normalize) == (Head.WEIGHTED_MEAN, WIDTH, True)
    pooled = pooled_in_chunks(recipe.head, hidden, 300)
    layers = [DenseLayer(layer) for layer in recipe.dense]
    count = len(hidden)
    done = finish_vectors(pooled, layers, [None] * count, [recipe.normalize] * count)
    assert done.nonfinite == []
    want = features["sentence_embedding"]
    assert_equivalent(torch.stack(done.vectors), want)
    short = finish_vectors(pooled, layers, [32] * count, [True] * count)
    assert_equivalent(torch.stack(short.vectors), torch.nn.functional.normalize(want[:, :32]))
