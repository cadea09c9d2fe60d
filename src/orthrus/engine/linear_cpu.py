"""Linear layers in bfloat16 on a processor that emulates it: multiplied in float32, rounded once.

Without AVX-512 oneDNN has no bfloat16 product for vLLM's CPU backend, which then takes torch's own
(vllm/model_executor/layers/utils.py, `dispatch_cpu_unquantized_gemm`), and that converts every operand anew
for every use. Converting a layer's weight once for the call costs little beside the product of a step's rows.
"""

from __future__ import annotations

import sys
from functools import partial, wraps
from typing import Any

import torch

from orthrus.engine import compat, cpu_dtype

MANY_ROWS = 8
"""From so many rows on, the conversion of the weight pays (from 3 with one thread, from 12 with two)."""

VALUES_AT_ONCE = 2**22
"""So many values of a weight are held in float32 at a time: 16 MiB, whatever the size of the layer."""

STEADY_ROWS = 64
"""From so many rows on, a row's result does not depend on the number of rows (measured with MKL)."""


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, steady: bool) -> torch.Tensor:
    """`x` [..., in] times `weight` [out, in] plus `bias` [out], in and out in bfloat16.

    With `steady` a row's bits do not depend on the other rows.
    """
    rows = x.reshape(-1, x.shape[-1])
    count = len(rows)
    if count < MANY_ROWS and not steady:
        return torch.nn.functional.linear(x, weight, bias)
    if steady and count < STEADY_ROWS:
        rows = torch.cat((rows, rows.new_zeros(STEADY_ROWS - count, rows.shape[1])))
    wide = rows.float()
    found = rows.new_empty(len(rows), len(weight))
    size = max(1, VALUES_AT_ONCE // weight.shape[1])
    for start in range(0, len(weight), size):
        part = slice(start, start + size)
        part_bias = None if bias is None else bias[part].float()
        found[:, part] = torch.nn.functional.linear(wide, weight[part].float(), part_bias)
    return found[:count].reshape(*x.shape[:-1], len(weight))


opaque_linear = torch.library.custom_op("orthrus::linear", linear, mutates_args=())
"""`linear` as one operator, for the compiler: it must not build the number of rows into its code."""


@opaque_linear.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, steady: bool) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


def _linear(steady: bool, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product = opaque_linear if torch.compiler.is_compiling() else linear  # an operator's call costs more
    return product(x, weight, bias, steady)


def install(*, steady: bool) -> None:
    """Have vLLM's CPU backend take `linear` for its bfloat16 layers where bfloat16 is emulated.

    Call it before the model is loaded; safe to call more than once.
    """
    if not cpu_dtype.emulates_bfloat16():
        return
    stock = compat.dispatch_cpu_unquantized_gemm

    @wraps(stock)
    def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
        weight: Any = layer.weight
        if weight.dtype is torch.bfloat16 and weight.ndim == 2 and not weight.is_meta:
            layer.cpu_linear = partial(_linear, steady)
        else:
            stock(layer, remove_weight)

    sys.modules[stock.__module__].dispatch_cpu_unquantized_gemm = dispatch  # type: ignore[attr-defined]
