"""The benchmarks of embeddings alone: their inputs and figures, and one run of each on a tiny checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from orthrus.bench.pooling import inputs
from orthrus.bench.pooling.equivalence import difference
from orthrus.cli_bench import app

TEXTS = [[1, 2, 3], [4, 5], [6]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=300,
        max_position_embeddings=4096,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {
        word: 3 + i for i, word in enumerate(dict.fromkeys(" ".join(inputs.passages()[:20]).split()[:290]))
    }
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, **words}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    return folder


def test_inputs_run_on_over_the_passages() -> None:
    assert inputs.running(TEXTS, 1, 5) == [4, 5, 6, 1, 2]
    assert inputs.running(TEXTS, 2, 1) == [6]
    assert len(inputs.passages()) > 300


def test_lengths_are_mixed_and_reproducible() -> None:
    found = inputs.of_mixed_length(TEXTS, 200, 5, 2000, seed=3)
    lengths = [len(one) for one in found]
    assert (min(lengths), max(lengths)) == (5, 2000)
    assert 60 < np.median(lengths) < 170
    assert found == inputs.of_mixed_length(TEXTS, 200, 5, 2000, seed=3)


def test_differences_are_relative_to_the_one_pass_vector() -> None:
    wanted = np.array([[3.0, 4.0], [0.0, 2.0]], dtype=np.float32)
    same = difference("float32", "mean", 256, wanted, wanted)
    assert (same.min_cosine, same.mean_relative_l2, same.holds) == (1.0, 0.0, True)
    moved = difference("float32", "mean", 256, wanted + np.array([[0.0, 0.0], [0.0, 1.0]]), wanted)
    assert moved.min_cosine == 1.0
    assert moved.mean_relative_l2 == 0.25
    assert not moved.holds


@pytest.mark.engine
def test_each_command_runs_and_writes_its_result(tiny: Path, tmp_path: Path) -> None:
    shared = ["--model", str(tiny), "--out", str(tmp_path)]
    calls = [
        ["pooling", "--count", "4", "--chunk", "64", "--dtype", "float32"],
        ["prefix-reuse", "--count", "6", "--instruction-tokens", "400", "--dtype", "float32"],
        ["chunked", "--count", "3", "--chunk", "256", "--repetitions", "1", "--dtype", "float32"],
    ]
    for call in calls:
        result = CliRunner().invoke(app, [*call, *shared], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    pooling, reuse, chunked = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("pooling", "prefix-reuse", "chunked")
    )
    assert [(row["head"], row["chunk"]) for row in pooling["rows"]][:2] == [("mean", None), ("mean", 64)]
    assert len(pooling["rows"]) == 8
    assert all(row["min_cosine"] > 0.99999 and row["p99_relative_l2"] < 1e-3 for row in pooling["rows"])
    off, on, again = (reuse["rounds"][name] for name in ("off", "on", "on, embedded again"))
    assert off["tokens"] > on["tokens"] > again["tokens"]
    assert min(on["min_cosine"], again["min_cosine"]) > 0.99999
    assert len(chunked["mean_latency_ms"]["atomic"]) == len(chunked["mean_latency_ms"]["chunked"]) == 1
    assert "python" in pooling["machine"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (["pooling", "--chunk", "4096"], "16 to 2047"),
        (["pooling", "--dtype", "int8"], "bfloat16, float32"),
        (["chunked", "--chunk", "4"], "16 to 2047"),
        (["prefix-reuse", "--count", "0"], "greater than or equal to 1"),
    ],
)
def test_options_that_cannot_be_are_refused(call: list[str], message: str) -> None:
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 2
    assert message in result.output
