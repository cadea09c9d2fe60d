"""Attention on CPU with `--batch-invariant`: the same bits, whatever shares the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_driver import embed_all, tokens
from hypothesis import given
from hypothesis import strategies as st

from orthrus.engine.attention_cpu import InvariantAttentionBuilder, in_segments
from orthrus.engine.compat import CommonAttentionMetadata, EngineArgs, envs
from orthrus.engine.config import UnsupportedConfigError

pytestmark = pytest.mark.engine


def batch_of(rows: list[tuple[int, int]]) -> CommonAttentionMetadata:
    """Requests of (tokens computed before, query rows), each with its own number as its KV block."""
    lengths = [length for _, length in rows]
    starts = torch.tensor([sum(lengths[:i]) for i in range(len(rows) + 1)], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor([computed + length for computed, length in rows], dtype=torch.int32),
        num_reqs=len(rows),
        num_actual_tokens=sum(lengths),
        max_query_len=max(lengths),
        max_seq_len=max(computed + length for computed, length in rows),
        block_table_tensor=torch.arange(len(rows), dtype=torch.int32)[:, None],
        slot_mapping=torch.arange(sum(lengths)),
    )


def visible(batch: CommonAttentionMetadata) -> list[tuple[int, int]]:
    """For each row: the request whose KV it reads, and how many positions of it."""
    starts, seen = batch.query_start_loc.tolist(), []
    for i in range(batch.num_reqs):
        length = starts[i + 1] - starts[i]
        first = int(batch.seq_lens[i]) - length + 1
        seen += [(int(batch.block_table_tensor[i, 0]), first + row) for row in range(length)]
    return seen


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), min_size=1, max_size=6), st.integers(1, 9))
def test_segments_show_every_row_what_the_request_shows_it(rows: list[tuple[int, int]], most: int) -> None:
    batch = batch_of(rows)
    cut = in_segments(batch, most)
    assert visible(cut) == visible(batch)
    lengths = (cut.query_start_loc[1:] - cut.query_start_loc[:-1]).tolist()
    assert all(1 <= length <= most for length in lengths)
    assert len(lengths) == cut.num_reqs == len(cut.seq_lens) == sum(-(-n // most) for _, n in rows)
    assert (cut.seq_lens.dtype, cut.query_start_loc.dtype) == (torch.int32, torch.int32)
    assert cut.max_query_len == min(most, batch.max_query_len)


def test_a_vector_has_the_same_bits_in_one_pass_and_in_any_chunks(engine: Any, tiny_model: Path) -> None:
    settings = {"batch_invariant": True}
    prompts = [tokens(n, n) for n in (30, 505, 170, 333)]
    one_pass, chunked = (
        embed_all(
            engine(tiny_model, settings=settings, dtype="bfloat16", max_num_batched_tokens=budget),
            prompts,
            "last",
        )
        for budget in (2048, 96)
    )
    assert np.array_equal(one_pass, chunked)


def test_a_worker_that_has_read_its_environment_splits_no_kv_range_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_CPU_ATTN_SPLIT_KV", "1")
    envs.disable_envs_cache()
    envs.enable_envs_cache()
    assert envs.VLLM_CPU_ATTN_SPLIT_KV
    InvariantAttentionBuilder.adopt_all([])
    assert not envs.VLLM_CPU_ATTN_SPLIT_KV
    envs.disable_envs_cache()


def test_vllms_own_switch_is_refused_on_cpu(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(UnsupportedConfigError, match="use --batch-invariant on CPU"):
        EngineArgs(str(tiny_model), additional_config={"orthrus": {}}).create_engine_config()
