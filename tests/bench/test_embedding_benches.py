"""The benchmarks of embeddings alone: their inputs and figures, and one run of each on a tiny checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from orthrus.bench.pooling import inputs
from orthrus.bench.pooling.cost import memory_by_head
from orthrus.bench.pooling.equivalence import difference
from orthrus.cli_bench import app
from orthrus.pooling import Head

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


def test_differences_are_relative_to_the_one_pass_vector_and_to_float32() -> None:
    wanted = np.array([[3.0, 4.0], [0.0, 2.0]], dtype=np.float32)
    same = difference("float32", "mean", 256, wanted, wanted, wanted)
    assert (same.min_cosine, same.mean_relative_l2, same.holds) == (1.0, 0.0, True)
    moved = wanted + np.array([[0.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    found = difference("bfloat16", "mean", 256, moved, wanted, 2 * wanted)
    assert (found.min_cosine, found.mean_relative_l2) == (1.0, 0.25)
    assert (found.float32_min_cosine, found.float32_mean_relative_l2) == (1.0, (0.5 + 0.25) / 2)
    assert not found.holds


def test_the_memory_of_each_head_is_that_of_its_state() -> None:
    *streaming, buffered = memory_by_head(576, "bfloat16", max_num_seqs=64, buffer_tokens=1000)
    assert [row["head"] for row in streaming] == ["mean", "weighted_mean", "cls", "last"]
    # 64 slots for generations and 8 for embeddings: a sum and a carry in float32, and 21 bytes of counters.
    assert {row["bytes"] for row in streaming} == {72 * (8 * 576 + 21)}
    assert {row["bytes_per_request"] for row in streaming} == {8 * 576 + 21}
    # 16 pages of 64 tokens, and a table of 8 bytes for each slot and page.
    assert buffered["bytes"] == 16 * 64 * 576 * 2 + 8 * 72 * 16
    assert buffered["bytes_per_token"] == 576 * 2


def ran(name: str, options: list[str], tiny: Path, out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the raw records of a command; its report must be there, too."""
    call = [name, *options, "--model", str(tiny), "--out", str(out)]
    result = CliRunner().invoke(app, call, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = json.loads((out / f"{name}.json").read_text())
    assert {"python", "torch"} <= summary["machine"].keys()
    assert summary["model"] == tiny.name  # and not where it lies
    assert summary["engine_seconds"]
    report = (out / f"{name}.md").read_text()
    assert report.startswith("# ")
    assert "| ---" in report
    assert "- processor: " in report
    return summary, [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.engine
def test_pooling_compares_with_one_pass_and_with_float32(tiny: Path, tmp_path: Path) -> None:
    options = ["--count", "4", "--chunk", "64", "--dtype", "bfloat16", "--batch-invariant"]
    summary, raw = ran("pooling", options, tiny, tmp_path)
    rows = summary["rows"]
    assert [row["chunk"] for row in rows] == ["one pass", "control", 64] * 4
    assert [row["head"] for row in rows][::3] == ["mean", "cls", "weighted_mean", "last"]
    for row in rows:
        mine = [r for r in raw if (r["head"], r["chunk"]) == (row["head"], row["chunk"])]
        assert len(mine) == 4
        assert min(r["cosine"] for r in mine) == row["min_cosine"]
        distances = [r["float32_relative_l2"] for r in mine]
        assert np.mean(distances) == pytest.approx(row["float32_mean_relative_l2"])
        if row["chunk"] in ("control", 64):
            assert row["p99_relative_l2"] < 1e-6  # the model's rows are the same to the bit
        # The float32 engine is the reference of a bfloat16 run, which is not equal to it.
        assert 1e-5 < row["float32_mean_relative_l2"] < 0.1


@pytest.mark.engine
def test_prefix_reuse_computes_less_for_equal_vectors(tiny: Path, tmp_path: Path) -> None:
    options = ["--count", "6", "--instruction-tokens", "400", "--dtype", "float32", "--seed", "3"]
    summary, raw = ran("prefix-reuse", options, tiny, tmp_path)
    off, on, again = (summary["rounds"][name] for name in ("off", "on", "on, embedded again"))
    assert off["tokens"] > on["tokens"] > again["tokens"]
    assert min(on["min_cosine"], again["min_cosine"]) > 0.99999
    assert [record["reuse"] for record in raw][::6] == ["off", "on", "on, embedded again"]
    assert len(raw) == 18


@pytest.mark.engine
def test_chunked_times_every_input_in_both_cases(tiny: Path, tmp_path: Path) -> None:
    options = ["--count", "3", "--chunk", "256", "--repetitions", "1", "--dtype", "float32"]
    summary, raw = ran("chunked", options, tiny, tmp_path)
    for case in ("atomic", "chunked"):
        mine = [r["latency_ms"] for r in raw if r["case"] == case]
        assert len(mine) == 3
        assert summary["mean_latency_ms"][case] == [pytest.approx(np.mean(mine))]
    # The longest input, of 2 000 tokens, is always there.
    assert len(summary["mean_latency_ms_of_longer"]["chunked"]) == 1


@pytest.mark.engine
def test_pooling_cost_times_full_steps_of_each_head(tiny: Path, tmp_path: Path) -> None:
    options = ["--tokens", "128", "--requests", "3", "--repeats", "2", "--max-num-seqs", "8"]
    summary, raw = ran("pooling-cost", options, tiny, tmp_path)
    assert [row["head"] for row in summary["times"]] == [head.value for head in Head]
    for row in summary["times"]:
        mine = [r for r in raw if r["head"] == row["head"]]
        assert [r["rows"] for r in mine] == [128, 128]
        assert row["pooling_s"] == pytest.approx(np.median([r["pooling_s"] for r in mine]))
        assert row["share_percent"] == pytest.approx(100 * row["pooling_s"] / row["forward_s"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (["pooling", "--chunk", "4096"], "16 to 2047"),
        (["pooling", "--dtype", "int8"], "bfloat16, float32"),
        (["chunked", "--chunk", "4"], "16 to 2047"),
        (["pooling-cost", "--requests", "300"], "1 to 256"),
        (["pooling-cost", "--pooling-buffer-tokens", "2048"], "as many as a buffer of 2048 tokens holds"),
        (["prefix-reuse", "--count", "0"], "greater than or equal to 1"),
    ],
)
def test_options_that_cannot_be_are_refused(call: list[str], message: str) -> None:
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 2
    assert message in result.output
