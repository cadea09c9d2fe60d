"""The grouped LoRA operators against plain loops in float32, and against what vLLM does by itself."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orthrus.engine.compat import STOCK_CPU_WRAPPER, CpuPlatform, LoRAMapping, PunicaWrapperCPU
from orthrus.engine.lora_cpu import PunicaWrapperCPUGrouped, RowGroups, install

INPUT_SIZE = 24
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


@dataclass
class Layer:
    """A packed LoRA layer with random weights: `a[i]` is `[slots, 1, r, in]`, `b[i]` `[slots, 1, out, r]`."""

    a: tuple[torch.Tensor, ...]
    b: tuple[torch.Tensor, ...]
    sizes: tuple[int, ...]


def make_layer(slots: int, rank: int, sizes: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Layer:
    generator = torch.Generator().manual_seed(seed)
    return Layer(
        tuple(
            (torch.randn(slots, 1, rank, INPUT_SIZE, generator=generator) / INPUT_SIZE**0.5).to(dtype)
            for _ in sizes
        ),
        tuple((torch.randn(slots, 1, n, rank, generator=generator) / rank**0.5).to(dtype) for n in sizes),
        sizes,
    )


def rows(count: int, size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_wrapper(
    layout: list[int],
    slots: int,
    cls: type[PunicaWrapperCPU] = PunicaWrapperCPUGrouped,
    sampled: list[int] | None = None,
) -> PunicaWrapperCPU:
    """A wrapper that has been told the slot of every row (-1: base), as vLLM's LoRA manager tells it."""
    wrapper = cls(4096, 256, "cpu", lora_config=SimpleNamespace(max_loras=slots))
    set_layout(wrapper, layout, slots, sampled)
    return wrapper


def set_layout(
    wrapper: PunicaWrapperCPU, layout: list[int], slots: int, sampled: list[int] | None = None
) -> None:
    ids: list[int | None] = [100 + slot for slot in range(slots)]
    tokens = tuple(100 + slot if slot >= 0 else 0 for slot in layout)
    prompts = tokens if sampled is None else tuple(100 + slot if slot >= 0 else 0 for slot in sampled)
    wrapper.update_metadata(LoRAMapping(tokens, prompts, is_prefill=True), ids, slots + 1, 1000)


def reference(
    y: torch.Tensor, x: torch.Tensor, layer: Layer, layout: list[int], scale: float = 1.0
) -> torch.Tensor:
    """Row by row in float32."""
    out = y.float().clone()
    for row, slot in enumerate(layout):
        if slot < 0:
            continue
        column = 0
        for a, b, size in zip(layer.a, layer.b, layer.sizes, strict=True):
            hidden = a[slot, 0].float() @ x[row].float() * scale
            out[row, column : column + size] += b[slot, 0].float() @ hidden
            column += size
    return out


def assert_near(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    difference = (actual.float() - expected).norm(dim=-1)
    assert torch.all(difference <= TOLERANCE[dtype] * expected.norm(dim=-1).clamp_min(1.0))


# A batch is a few runs of rows, each with one slot: shorter and longer than LONG_RUN, and recurring.
layouts = st.lists(
    st.tuples(st.integers(-1, 2), st.sampled_from([1, 2, 7, 31, 32, 33, 80])), min_size=1, max_size=7
).map(lambda runs: [slot for slot, length in runs for _ in range(length)])


@settings(max_examples=60, deadline=None)
@given(
    layout=layouts,
    rank=st.sampled_from([8, 16, 64]),
    sizes=st.sampled_from([(40,), (16, 16), (40, 12, 12)]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    scale=st.sampled_from([1.0, 0.5]),
    padding=st.sampled_from([0, 3]),
)
def test_linear_equals_row_by_row(
    layout: list[int], rank: int, sizes: tuple[int, ...], dtype: torch.dtype, scale: float, padding: int
) -> None:
    layer = make_layer(3, rank, sizes, dtype)
    x = rows(len(layout) + padding, INPUT_SIZE, dtype, seed=1)
    before = rows(len(layout) + padding, sum(sizes), dtype, seed=2)
    y = before.clone()

    make_wrapper(layout, 3).add_lora_linear(y, x, layer.a, layer.b, scale, sizes)

    assert_near(y, reference(before, x, layer, layout, scale), dtype)
    base = torch.tensor([slot < 0 for slot in layout] + [True] * padding)
    assert torch.equal(y[base], before[base])


@settings(max_examples=20, deadline=None)
@given(layout=layouts, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_row_does_not_depend_on_its_neighbours(layout: list[int], dtype: torch.dtype) -> None:
    layer = make_layer(3, 16, (40, 12), dtype)
    x = rows(len(layout), INPUT_SIZE, dtype, seed=3)
    together = torch.zeros(len(layout), 52, dtype=dtype)
    make_wrapper(layout, 3).add_lora_linear(together, x, layer.a, layer.b, 1.0, layer.sizes)

    for row in {0, len(layout) // 2, len(layout) - 1}:
        alone = torch.zeros(1, 52, dtype=dtype)
        single = make_wrapper([layout[row]], 3)
        single.add_lora_linear(alone, x[row : row + 1], layer.a, layer.b, 1.0, layer.sizes)
        assert_near(together[row : row + 1], alone.float(), dtype)


@settings(max_examples=20, deadline=None)
@given(layout=layouts, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_shrink_then_expand_equals_linear(layout: list[int], dtype: torch.dtype) -> None:
    """The two halves that sharded adapters call one after the other, from a column offset on."""
    layer = make_layer(3, 8, (16, 12), dtype)
    x = rows(len(layout), INPUT_SIZE, dtype, seed=4)
    before = rows(len(layout), 5 + 28, dtype, seed=5)
    y = before.clone()
    buffers = torch.zeros(2, len(layout), 8)
    wrapper = make_wrapper(layout, 3)

    wrapper.add_shrink(buffers, x, layer.a, 1.0)
    wrapper.add_expand(y, buffers, layer.b, layer.sizes, offset_start=5)

    assert torch.equal(y[:, :5], before[:, :5])
    assert_near(y[:, 5:], reference(before[:, 5:], x, layer, layout), dtype)


@pytest.mark.parametrize("layout", [[0, 1, -1, 0], [1] * 40 + [-1] * 5])
def test_expand_without_adding_overwrites_adapter_rows_only(layout: list[int]) -> None:
    layer = make_layer(2, 8, (16,), torch.float32)
    hidden = rows(len(layout), 8, torch.float32, seed=6)
    before = rows(len(layout), 16, torch.float32, seed=7)
    y = before.clone()

    make_wrapper(layout, 2).add_expand(y, (hidden,), layer.b, (16,), add_inputs=False)

    for row, slot in enumerate(layout):
        expected = before[row] if slot < 0 else layer.b[0][slot, 0] @ hidden[row]
        torch.testing.assert_close(y[row], expected)


def test_embedding_rows_get_their_adapter() -> None:
    layout = [1, -1, 0, 1]
    lora_b = make_layer(2, 8, (16,), torch.bfloat16).b[0]
    looked_up = rows(4, 8, torch.bfloat16, seed=8)
    before = rows(4, 16, torch.bfloat16, seed=9)
    y = before.clone()

    make_wrapper(layout, 2).add_lora_embedding(y, looked_up, lora_b)

    expected = before.float()
    for row, slot in enumerate(layout):
        if slot >= 0:
            expected[row] += lora_b[slot, 0].float() @ looked_up[row].float()
    assert_near(y, expected, torch.bfloat16)
    assert torch.equal(y[1], before[1])


@pytest.mark.parametrize("logits_dtype", [torch.float32, torch.bfloat16])
def test_logits_use_the_mapping_of_the_sampled_rows(logits_dtype: torch.dtype) -> None:
    sampled = [-1, 1, 0]
    layer = make_layer(2, 8, (30,), torch.bfloat16)
    x = rows(3, INPUT_SIZE, torch.bfloat16, seed=10)
    before = rows(3, 32, logits_dtype, seed=11)  # two columns of vocabulary padding beyond B's rows
    y = before.clone()

    wrapper = make_wrapper([-1] * 6 + [1] * 40 + [0], 2, sampled=sampled)
    wrapper.add_lora_logits(y, x, layer.a[0], layer.b[0], 1.0)

    assert_near(y[:, :30], reference(before[:, :30], x, layer, sampled), torch.bfloat16)
    assert torch.equal(y[:, 30:], before[:, 30:])
    assert torch.equal(y[0], before[0])


def test_stock_gives_base_rows_an_adapter_and_ours_does_not() -> None:
    """vLLM indexes the adapters with -1 for a base row, which is the last slot: why this module exists."""
    layout = [0, 0, -1, -1]
    layer = make_layer(2, 8, (16,), torch.float32)
    x = rows(4, INPUT_SIZE, torch.float32, seed=12)
    before = rows(4, 16, torch.float32, seed=13)
    right = reference(before, x, layer, layout)

    stock, ours = before.clone(), before.clone()
    make_wrapper(layout, 2, PunicaWrapperCPU).add_lora_linear(stock, x, layer.a, layer.b, 1.0, (16,))
    make_wrapper(layout, 2).add_lora_linear(ours, x, layer.a, layer.b, 1.0, (16,))

    last_adapter = reference(before, x, layer, [0, 0, 1, 1])
    torch.testing.assert_close(stock, last_adapter)
    assert not torch.allclose(stock[2:], right[2:], atol=0.1)
    torch.testing.assert_close(ours, right)
    assert torch.equal(ours[2:], before[2:])


def test_stock_logits_give_base_rows_an_adapter_and_ours_do_not() -> None:
    layer = make_layer(2, 8, (16,), torch.float32)
    x = rows(2, INPUT_SIZE, torch.float32, seed=14)
    stock, ours = torch.zeros(2, 16), torch.zeros(2, 16)

    make_wrapper([0, -1], 2, PunicaWrapperCPU).add_lora_logits(stock, x, layer.a[0], layer.b[0], 1.0)
    make_wrapper([0, -1], 2).add_lora_logits(ours, x, layer.a[0], layer.b[0], 1.0)

    assert stock[1].abs().max() > 0.1
    assert torch.equal(ours[1], torch.zeros(16))
    torch.testing.assert_close(ours[0], stock[0])


def test_without_adapter_rows_nothing_is_touched() -> None:
    layer = make_layer(2, 8, (16,), torch.float32)
    before = rows(3, 16, torch.float32, seed=15)
    y = before.clone()
    x = torch.full((3, INPUT_SIZE), torch.nan)
    make_wrapper([-1, -1, -1], 2).add_lora_linear(y, x, layer.a, layer.b, 1.0, (16,))
    assert torch.equal(y, before)


def test_each_step_uses_its_own_mapping() -> None:
    layer = make_layer(2, 8, (16,), torch.float32)
    wrapper = make_wrapper([-1] * 6, 2)
    x = rows(6, INPUT_SIZE, torch.float32, seed=16)
    for layout in ([0, 0, 1, 1, -1, -1], [1, -1, 1, -1, 0, 1], [-1] * 6):
        set_layout(wrapper, layout, 2)
        y = torch.zeros(6, 16)
        wrapper.add_lora_linear(y, x, layer.a, layer.b, 1.0, (16,))
        torch.testing.assert_close(y, reference(torch.zeros(6, 16), x, layer, layout))


def test_fewer_rows_than_mapped_is_an_error() -> None:
    layer = make_layer(1, 8, (16,), torch.float32)
    wrapper = make_wrapper([0] * 5, 1)
    with pytest.raises(ValueError, match="got 3 rows but the step maps 5"):
        wrapper.add_lora_linear(torch.zeros(3, 16), torch.zeros(3, INPUT_SIZE), layer.a, layer.b, 1.0, (16,))


def test_long_runs_stay_in_place_and_short_ones_are_gathered() -> None:
    step = RowGroups()
    step.assign(torch.tensor([0] * 40 + [1, 0, 1] + [-1] * 3 + [0]))
    readable = [(slot, group if isinstance(group, slice) else group.tolist()) for slot, group in step.groups]
    assert readable == [(0, slice(0, 40)), (1, [40, 42]), (0, [41, 46])]
    assert step.mapped_rows == 47


def test_install_replaces_the_wrapper_once_and_refuses_an_unknown_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CpuPlatform, "get_punica_wrapper", classmethod(lambda cls: STOCK_CPU_WRAPPER))
    install()
    install()
    assert CpuPlatform.get_punica_wrapper() == "orthrus.engine.lora_cpu.PunicaWrapperCPUGrouped"

    monkeypatch.setattr(CpuPlatform, "get_punica_wrapper", classmethod(lambda cls: "elsewhere.Wrapper"))
    with pytest.raises(RuntimeError, match=r"elsewhere\.Wrapper"):
        install()


def test_the_stock_wrapper_is_still_the_one_this_module_corrects() -> None:
    assert f"{PunicaWrapperCPU.__module__}.{PunicaWrapperCPU.__qualname__}" == STOCK_CPU_WRAPPER
