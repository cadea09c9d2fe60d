"""LoRA on vLLM's CPU backend: right for batches that mix adapters and base rows, and close to base speed.

vLLM's CPU operators (`vllm/lora/ops/torch_ops/lora_ops.py`) look up the adapter of every row with
`weights[slots]`. Base rows have slot -1, which picks the *last* adapter instead of none, and every row
gets its own copy of the adapter's weights. Here the rows of a step are grouped by adapter once, in
`update_metadata`, and each layer does one pair of matrix products per group; base rows are in no group.

vLLM never compiles a model with LoRA on the CPU (`vllm/platforms/cpu.py` switches compilation off), so the
groups are plain Python lists read by every layer.
"""

from collections.abc import Sequence
from typing import Any

import torch

from orthrus.engine.compat import (
    STOCK_CPU_WRAPPER,
    CpuPlatform,
    LoRAMapping,
    PunicaWrapperCPU,
)

LONG_RUN = 32
"""Rows from which a run of rows is used in place; shorter runs of one adapter are gathered together."""

FEW_ROWS = 8
"""Rows up to which a group is computed in float32: below, converting the small weights costs less than the
set-up of a bfloat16 product in oneDNN (measured: about half the time per layer for 1 to 4 rows)."""


class RowGroups:
    """The rows of one step, grouped by adapter slot.

    `groups` lists `(slot, rows)`: `rows` is a slice where the rows follow each other, else an int64 index
    tensor. Base rows are in no group. `mapped_rows` is the number of rows the step has, base rows included.
    """

    def __init__(self) -> None:
        self.groups: list[tuple[int, slice | torch.Tensor]] = []
        self.mapped_rows = 0

    def assign(self, slots: torch.Tensor) -> None:
        """Group the rows whose adapter slots are `slots`, int64 `[rows]`, -1 for a base row."""
        self.groups = []
        self.mapped_rows = len(slots)
        short_runs: dict[int, list[slice]] = {}
        start = 0
        values, lengths = torch.unique_consecutive(slots, return_counts=True)
        for slot, length in zip(values.tolist(), lengths.tolist(), strict=True):
            run = slice(start, start + length)
            if slot >= 0 and length >= LONG_RUN:
                self.groups.append((slot, run))
            elif slot >= 0:
                short_runs.setdefault(slot, []).append(run)
            start += length

        for slot, runs in short_runs.items():
            if len(runs) == 1:
                self.groups.append((slot, runs[0]))
            else:
                rows = torch.cat([torch.arange(run.start, run.stop) for run in runs])
                self.groups.append((slot, rows))

    def check(self, num_rows: int) -> None:
        """Refuse a layer input that lacks rows of the step.

        Raises:
            ValueError: the layer got `num_rows` rows, fewer than the step maps.
        """
        if self.groups and num_rows < self.mapped_rows:
            raise ValueError(
                f"the layer got {num_rows} rows but the step maps {self.mapped_rows} rows to adapters; "
                "the adapter mapping must be set from the very rows that reach the layer"
            )


def _take(tensor: torch.Tensor, rows: slice | torch.Tensor) -> torch.Tensor:
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


def _weight(stacked: torch.Tensor, slot: int) -> torch.Tensor:
    """`[slots, 1, out, in]` or `[slots, out, in]` -> the `[out, in]` of one slot."""
    return stacked[slot].view(stacked.shape[-2:])


def _compute_dtype(x: torch.Tensor, weight: torch.Tensor) -> torch.dtype:
    return torch.float32 if x.size(0) <= FEW_ROWS else weight.dtype


def _multiply_add(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """`y += x @ weight.T` in place; one rounding where the dtypes agree."""
    dtype = _compute_dtype(x, weight)
    x, weight = x.to(dtype), weight.to(dtype)
    if y.dtype == dtype:
        y.addmm_(x, weight.t())
    else:
        y += torch.nn.functional.linear(x, weight)


def _lora_linear(
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a: Sequence[torch.Tensor],
    lora_b: Sequence[torch.Tensor],
    output_sizes: Sequence[int],
    scale: float,
    row_groups: RowGroups,
) -> None:
    row_groups.check(x.size(0))
    for slot, rows in row_groups.groups:
        # The slices of a packed layer (q, k, v) share x, so one product shrinks for all of them: joining
        # the small A matrices costs less than reading x again.
        shrink = [_weight(a, slot) for a in lora_a]
        joined = shrink[0] if len(shrink) == 1 else torch.cat(shrink)
        source = _take(x, rows)
        dtype = _compute_dtype(source, joined)
        hidden = torch.nn.functional.linear(source.to(dtype), joined.to(dtype))
        if scale != 1.0:
            hidden *= scale
        target = _take(y, rows)
        column = 0
        parts = hidden.split([a.size(0) for a in shrink], dim=1)
        for part, b, size in zip(parts, lora_b, output_sizes, strict=True):
            _multiply_add(target[:, column : column + size], part, _weight(b, slot)[:size])
            column += size
        if isinstance(rows, torch.Tensor):
            y.index_copy_(0, rows, target)


def _lora_shrink(
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a: torch.Tensor,
    scale: float,
    row_groups: RowGroups,
) -> None:
    row_groups.check(x.size(0))
    for slot, rows in row_groups.groups:
        weight = _weight(lora_a, slot)
        hidden = torch.nn.functional.linear(_take(x, rows).to(weight.dtype), weight)
        y[rows, : weight.size(0)] = (hidden * scale).to(y.dtype)


def _lora_expand(
    y: torch.Tensor,
    x: torch.Tensor,
    lora_b: torch.Tensor,
    offset: int,
    size: int,
    add_inputs: bool,
    row_groups: RowGroups,
) -> None:
    columns = y[:, offset : offset + size]
    row_groups.check(x.size(0))
    for slot, rows in row_groups.groups:
        weight = _weight(lora_b, slot)[:size]
        target = _take(columns, rows)
        if not add_inputs:
            target.zero_()
        _multiply_add(target, _take(x, rows), weight)
        if isinstance(rows, torch.Tensor):
            columns.index_copy_(0, rows, target)


class PunicaWrapperCPUGrouped(PunicaWrapperCPU):  # type: ignore[misc]
    """vLLM's interface between LoRA layers and kernels, on rows grouped by adapter.

    Same contract as `vllm/lora/punica_wrapper/punica_base.py`: every `add_...` method changes `y`
    `[rows, out]` in place for rows with an adapter and leaves base rows alone. Activations and adapter
    weights are bfloat16, float16 or float32, not necessarily the same.
    """

    def __init__(
        self,
        max_num_batched_tokens: int,
        max_batches: int,
        device: torch.device | str,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_num_batched_tokens, max_batches, device, **kwargs)
        self.token_groups = RowGroups()
        self.sampler_groups = RowGroups()

    def update_metadata(
        self,
        mapping: LoRAMapping,
        lora_index_to_id: list[int | None],
        max_loras: int,
        vocab_size: int,
        **kwargs: Any,
    ) -> None:
        """Take over one step's mapping of rows to adapters; runs once per step, before the layers."""
        super().update_metadata(mapping, lora_index_to_id, max_loras, vocab_size, **kwargs)
        self.token_groups.assign(self.token_lora_indices)
        self.sampler_groups.assign(self.sampler_indices)

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **kwargs: Any,
    ) -> None:
        """`y[:, slice i] += x @ A_i.T @ B_i.T * scale` for every slice of a packed layer."""
        _lora_linear(
            y.view(-1, y.shape[-1]),
            x.view(-1, x.shape[-1]),
            lora_a_stacked,
            lora_b_stacked,
            output_slices,
            scale,
            self.token_groups,
        )

    def add_shrink(
        self,
        y: tuple[torch.Tensor, ...] | torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        scale: float,
        **kwargs: Any,
    ) -> None:
        """`y[i] = x @ A_i.T * scale`: the first half, where tensor parallelism exchanges it in between."""
        x = x.view(-1, x.shape[-1])
        for buffer, lora_a in zip(y, lora_a_stacked, strict=True):
            _lora_shrink(buffer, x, lora_a, scale, self.token_groups)

    def add_expand(
        self,
        y: torch.Tensor,
        x: tuple[torch.Tensor, ...] | torch.Tensor,
        lora_b_stacked: tuple[torch.Tensor, ...],
        output_slices: tuple[int, ...],
        offset_start: int = 0,
        add_inputs: bool = True,
        **kwargs: Any,
    ) -> None:
        """`y[:, slice i] += x[i] @ B_i.T` (or `=` without `add_inputs`), slices from `offset_start` on."""
        y = y.view(-1, y.shape[-1])
        for part, lora_b, size in zip(x, lora_b_stacked, output_slices, strict=True):
            _lora_expand(y, part, lora_b, offset_start, size, add_inputs, self.token_groups)
            offset_start += size

    def add_lora_embedding(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        add_inputs: bool = True,
        **kwargs: Any,
    ) -> None:
        """`y += x @ B.T` for the token embedding, whose A part was a table look-up."""
        self.add_expand(y, (x,), (lora_b_stacked,), (y.shape[-1],), add_inputs=add_inputs)

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        **kwargs: Any,
    ) -> None:
        """`y += x @ A.T @ B.T * scale` on the rows that are sampled; `y` may be padded past B's rows."""
        size = min(y.shape[-1], lora_b_stacked.shape[-2])
        _lora_linear(
            y.view(-1, y.shape[-1]),
            x.view(-1, x.shape[-1]),
            [lora_a_stacked],
            [lora_b_stacked],
            [size],
            scale,
            self.sampler_groups,
        )


def _grouped_wrapper(cls: type) -> str:
    return f"{PunicaWrapperCPUGrouped.__module__}.{PunicaWrapperCPUGrouped.__qualname__}"


def install() -> None:
    """Make vLLM's CPU platform build `PunicaWrapperCPUGrouped`; call it before the model is loaded.

    Safe to call more than once. Does nothing to other platforms.

    Raises:
        RuntimeError: the platform names a wrapper that is neither vLLM's known one nor this one.
    """
    current = CpuPlatform.get_punica_wrapper()
    if current == _grouped_wrapper(CpuPlatform):
        return
    if current != STOCK_CPU_WRAPPER:
        raise RuntimeError(
            f"vLLM's CPU platform uses the LoRA wrapper {current!r}, expected {STOCK_CPU_WRAPPER!r}; "
            "Orthrus corrects that one only, so use vLLM 0.32.0 without another LoRA plugin"
        )
    CpuPlatform.get_punica_wrapper = classmethod(_grouped_wrapper)
