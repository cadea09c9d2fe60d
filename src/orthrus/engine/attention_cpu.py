"""Attention on CPU that gives a row the same bits in every step (`--batch-invariant`).

vLLM's CPU kernel chooses the length of its KV tiles by the query rows that a request brings along
(csrc/cpu/cpu_attn_impl.hpp, `calcu_tile_size_with_constant_q`), and splits a long KV range by what else is in
the step. Where the softmax is summed up in other parts, the last bit of a 16-bit result flips, so a prompt in
chunks gives other bits than in one pass. vLLM's own switch, VLLM_BATCH_INVARIANT, is for GPUs only.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from orthrus.engine.compat import CommonAttentionMetadata, CPUAttentionMetadataBuilder, envs

ROWS_OF_ONE_ITERATION = 8
"""Rows of query heads that every instruction set of the kernel takes in one iteration (some take more)."""


def in_segments(batch: CommonAttentionMetadata, rows: int) -> CommonAttentionMetadata:
    """The same rows as requests of at most `rows` query rows each, which share their KV blocks.

    A segment that begins later in a request sees what a row there sees: everything up to its own last row.
    """
    starts = batch.query_start_loc
    lengths = starts[1:] - starts[:-1]
    pieces = -(-lengths // rows)
    owner = torch.repeat_interleave(torch.arange(batch.num_reqs), pieces)
    rank = torch.arange(len(owner)) - (torch.cumsum(pieces, 0) - pieces)[owner]
    ends = torch.minimum(starts[owner] + (rank + 1) * rows, starts[owner + 1])
    segments = torch.cat((starts[:1], ends)).to(starts.dtype)
    return batch.replace(
        query_start_loc=segments,
        query_start_loc_cpu=segments,
        seq_lens=(batch.seq_lens[owner] - (starts[owner + 1] - ends)).to(batch.seq_lens.dtype),
        num_reqs=len(owner),
        max_query_len=min(rows, batch.max_query_len),
        block_table_tensor=batch.block_table_tensor[owner],
    )


class InvariantAttentionBuilder(CPUAttentionMetadataBuilder):
    """Cuts requests into segments that the kernel computes in one iteration, whatever the step holds.

    Slower: each segment reads the keys and values before it anew.
    """

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Any:
        if common_attn_metadata.causal is True:
            # A sliding window's tiles begin where the segment's first row says.
            heads = self.num_heads // self.num_kv_heads
            rows = max(1, ROWS_OF_ONE_ITERATION // heads) if self.window_size < 0 else 1
            common_attn_metadata = in_segments(common_attn_metadata, rows)
        return super().build(common_prefix_len, common_attn_metadata, fast_build)

    @classmethod
    def adopt_all(cls, attn_groups: list[list[Any]]) -> None:
        """Make a runner's builders for causal self-attention ours."""
        os.environ["VLLM_CPU_ATTN_SPLIT_KV"] = "0"
        if envs.VLLM_CPU_ATTN_SPLIT_KV:
            # A worker process of its own has read the environment once and for all by now.
            envs.disable_envs_cache()
            envs.enable_envs_cache()
        for group in (group for groups in attn_groups for group in groups):
            for builder in group.metadata_builders:
                if type(builder) is CPUAttentionMetadataBuilder and not (
                    builder.is_cross_attention or builder.is_encoder_only_attention
                ):
                    builder.__class__ = cls
