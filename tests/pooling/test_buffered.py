"""The operator's function: how it is named, loaded and called."""

import math
import sys

import pytest
import torch
from pooling_closed_forms import feed, make_bank

from orthrus.pooling import (
    BufferedHead,
    Head,
    PoolingBank,
    PoolingConfigError,
    PoolingFunctionError,
    PoolingStateError,
)
from orthrus.pooling.buffered import load_function


def bank_with(function, dtype=torch.float32):
    return PoolingBank(4, 8, "cpu", BufferedHead(function, "mine:f", 256, dtype))


@pytest.mark.parametrize(
    "path", ["pooling_closed_forms:first_plus_max", "pooling_closed_forms.first_plus_max"]
)
def test_both_dotted_forms_load(path):
    head = BufferedHead.load(path, max_tokens=64)
    assert head.name == path
    assert head.function(torch.tensor([[1.0, 2.0], [5.0, 0.0]])).tolist() == [6.0, 4.0]


def test_a_function_inside_a_package_loads():
    assert load_function("os.path.basename")("a/b") == "b"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("mean", "is not a dotted path"),
        ("", "is not a dotted path"),
        ("math:", "is not a dotted path"),
        ("no_such_module_here:f", "cannot import 'no_such_module_here'"),
        ("math:no_such_function", "module 'math' has no 'no_such_function'"),
        ("math.pi", "is a float, not callable"),
    ],
)
def test_a_path_that_cannot_be_used_says_why(path, message):
    with pytest.raises(PoolingConfigError, match=message):
        load_function(path)


def test_limits_and_dtypes_are_checked():
    with pytest.raises(PoolingConfigError, match="at least 1, not 0"):
        BufferedHead(math.sin, "math:sin", 0)
    with pytest.raises(PoolingConfigError, match=r"not torch\.int8"):
        BufferedHead(math.sin, "math:sin", 1, torch.int8)


def test_the_function_gets_every_hidden_state_in_order_and_may_change_the_width():
    def ends_and_length(hidden):
        return torch.cat([hidden[0, :1], hidden[-1, :1], torch.tensor([float(len(hidden))])])

    bank = bank_with(ends_and_length)
    hidden = torch.arange(150.0)[:, None].expand(150, 8)
    bank.open(1, Head.BUFFERED, 150)
    bank.open(3, Head.MEAN, 2)
    for start in range(0, 150, 50):
        feed(bank, [(1, hidden, start, 50)])
    feed(bank, [(3, hidden, 0, 2)])
    assert bank.finish(torch.tensor([1])).tolist() == [[0.0, 149.0, 150.0]]
    assert [row.tolist() for row in bank.finish_rows(torch.tensor([3, 1]))] == [
        [0.5] * 8,
        [0.0, 149.0, 150.0],
    ]
    with pytest.raises(PoolingStateError, match=r"widths \[3, 8\] do not stack"):
        bank.finish(torch.tensor([3, 1]))


def fails(hidden):
    raise ZeroDivisionError("one over none")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fails, "'mine:f' failed: ZeroDivisionError"),
        (lambda hidden: sys.exit(3), "'mine:f' failed: SystemExit"),
        (lambda hidden: hidden, r"got torch\.float32 \[3, 8\]"),
        (lambda hidden: hidden[0].long(), r"got torch\.int64 \[8\]"),
        (lambda hidden: hidden[0, :0], r"got torch\.float32 \[0\]"),
        (lambda hidden: 1.0, "got float"),
    ],
)
def test_a_function_that_fails_names_itself_and_its_slot(function, message):
    bank = bank_with(function)
    bank.open(2, Head.BUFFERED, 3)
    feed(bank, [(2, torch.ones(3, 8), 0, 3)])
    with pytest.raises(PoolingFunctionError, match=message) as error:
        bank.finish(torch.tensor([2]))
    assert error.value.slot == 2


def test_all_vectors_of_a_function_have_one_width():
    bank = bank_with(lambda hidden: hidden.flatten())
    for slot, length in enumerate((3, 3, 2)):
        bank.open(slot, Head.BUFFERED, length)
        feed(bank, [(slot, torch.ones(length, 8), 0, length)])
    assert bank.finish(torch.tensor([0, 1])).shape == (2, 24)
    with pytest.raises(PoolingFunctionError, match="returned 16 numbers, but 24 at first"):
        bank.finish(torch.tensor([2]))


def test_a_narrow_buffer_takes_its_own_dtype_and_refuses_a_wider_one():
    bank = bank_with(lambda hidden: hidden[0], torch.bfloat16)
    bank.open(0, Head.BUFFERED, 3)
    with pytest.raises(PoolingStateError, match=r"torch\.bfloat16 buffer would lose precision"):
        feed(bank, [(0, torch.ones(3, 8), 0, 3)])
    feed(bank, [(0, torch.full((3, 8), 0.5).bfloat16(), 0, 3)])
    vector = bank.finish(torch.tensor([0]))[0]
    assert vector.dtype == torch.float32
    assert vector.tolist() == [0.5] * 8


def test_a_half_precision_buffer_halves_the_memory():
    bank = make_bank()
    assert bank_with(fails).memory_bytes - bank_with(fails, torch.bfloat16).memory_bytes == 256 * 8 * 2
    assert bank.memory_bytes > PoolingBank(4, 8).memory_bytes


def test_hidden_states_come_back_in_order_and_only_from_a_buffered_request():
    bank = bank_with(None, torch.bfloat16)
    hidden = torch.arange(100.0)[:, None].expand(100, 8).bfloat16()
    bank.open(0, Head.BUFFERED, 100)
    bank.open(1, Head.MEAN, 1)
    feed(bank, [(0, hidden, 0, 70), (1, hidden, 0, 1)])
    with pytest.raises(PoolingStateError, match="after 70 of 100"):
        bank.hidden_states(0)
    feed(bank, [(0, hidden, 70, 30)])
    assert torch.equal(bank.hidden_states(0), hidden.float())
    with pytest.raises(PoolingStateError, match="only the buffered head keeps hidden states"):
        bank.hidden_states(1)
    with pytest.raises(PoolingFunctionError, match="no pooling function"):
        bank.finish(torch.tensor([0]))
