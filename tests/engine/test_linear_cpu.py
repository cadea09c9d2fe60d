"""Linear layers in bfloat16 where it is emulated: float32's product, rounded once."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.nn.functional import linear as torch_linear

from orthrus.engine import compat, cpu_dtype, linear_cpu

pytestmark = pytest.mark.engine
IN, OUT = 96, 160


@pytest.fixture
def layer() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(IN, OUT, dtype=torch.bfloat16).requires_grad_(requires_grad=False)


def rows(count: int) -> torch.Tensor:
    return torch.randn(count, IN, generator=torch.Generator().manual_seed(count)).bfloat16()


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 300])
@pytest.mark.parametrize("has_bias", [False, True])
def test_it_is_the_float32_product_rounded_once(
    layer: torch.nn.Linear, count: int, steady: bool, has_bias: bool
) -> None:
    x, bias = rows(count), layer.bias if has_bias else None
    got = linear_cpu.linear(x, layer.weight, bias, steady)
    exact = torch_linear(x.double(), layer.weight.double(), None if bias is None else bias.double())
    assert (got.dtype, got.shape) == (torch.bfloat16, (count, OUT))
    # Half a unit in the last of bfloat16's eight bits, and float32's own error where terms cancel.
    assert ((got.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-5).all()


@pytest.mark.parametrize("piece", [1, 7, 33, 64, 100])
def test_steady_rows_have_the_same_bits_in_any_company(layer: torch.nn.Linear, piece: int) -> None:
    x = rows(200)
    whole = linear_cpu.linear(x, layer.weight, layer.bias, True)
    pieces = [linear_cpu.linear(part, layer.weight, layer.bias, True) for part in x.split(piece)]
    assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("values", [1, 7 * IN, 64 * IN])
def test_a_large_weight_is_taken_in_parts(
    layer: torch.nn.Linear, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rows(40)
    whole = linear_cpu.linear(x, layer.weight, layer.bias, False)
    monkeypatch.setattr(linear_cpu, "VALUES_AT_ONCE", values)
    parts = linear_cpu.linear(x, layer.weight, layer.bias, False)
    assert torch.allclose(parts.float(), whole.float(), rtol=2**-7, atol=1e-5)


def test_more_dimensions_stay(layer: torch.nn.Linear) -> None:
    x = rows(40)
    got = linear_cpu.linear(x.reshape(2, 20, IN), layer.weight, None, False)
    assert torch.equal(got.reshape(40, OUT), linear_cpu.linear(x, layer.weight, None, False))


def test_only_bfloat16_layers_on_an_emulating_processor_take_it(
    layer: torch.nn.Linear, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[torch.nn.Module] = []

    def stock(layer: torch.nn.Module, remove_weight: bool) -> None:
        taken.append(layer)

    stock.__module__ = compat.dispatch_cpu_unquantized_gemm.__module__
    monkeypatch.setattr(compat, "dispatch_cpu_unquantized_gemm", stock)
    module = sys.modules[stock.__module__]
    monkeypatch.setattr(module, "dispatch_cpu_unquantized_gemm", stock)

    monkeypatch.setattr(cpu_dtype, "emulates_bfloat16", lambda: False)
    linear_cpu.install(steady=False)
    assert module.dispatch_cpu_unquantized_gemm is stock

    monkeypatch.setattr(cpu_dtype, "emulates_bfloat16", lambda: True)
    linear_cpu.install(steady=False)
    wide = torch.nn.Linear(IN, OUT)
    module.dispatch_cpu_unquantized_gemm(wide, remove_weight=True)
    module.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert taken == [wide]
    x = rows(20)
    assert torch.equal(
        layer.cpu_linear(x, layer.weight, layer.bias),
        linear_cpu.linear(x, layer.weight, layer.bias, False),
    )
