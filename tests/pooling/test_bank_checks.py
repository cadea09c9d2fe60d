"""What the bank refuses: never a wrong vector, and nothing changes when it refuses."""

import pytest
import torch
from pooling_closed_forms import closed_form, feed, make_bank, relative_l2

from orthrus.pooling import (
    Head,
    PoolingBank,
    PoolingCapacityError,
    PoolingConfigError,
    PoolingStateError,
    PrefixState,
)


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


@pytest.fixture
def bank():
    bank = make_bank()
    bank.open(0, Head.MEAN, 10)
    bank.open(2, Head.LAST, 6)
    return bank


@pytest.mark.parametrize(
    ("rows", "slots", "lengths", "starts", "message"),
    [
        (5, ints(0), ints(4), ints(0), "lengths add up to 4 rows, hidden has 5"),
        (5, ints(0, 2), ints(5), ints(0, 0), "2 slots, but 1 lengths"),
        (5, ints(0), ints(5), ints(0, 0), "1 slots, but 2 starts"),
        (5, ints(0, 2), ints(5, 0), ints(0, 0), "at least 1 row"),
        (5, ints(), ints(), ints(), "lengths add up to 0 rows, hidden has 5"),
        (5, ints(1), ints(5), ints(0), r"slots \[1\] are not open"),
        (5, ints(4), ints(5), ints(0), "slot 4 does not exist: slots are 0 to 3"),
        (5, ints(-1), ints(5), ints(0), "slot -1 does not exist"),
        (5, ints(0, 0), ints(2, 3), ints(0, 2), "named twice"),
        (5, ints(0), ints(5), ints(3), "slot 0: rows start at position 3, but 0 tokens were seen"),
        (7, ints(2), ints(7), ints(0), "slot 2: 7 tokens, but the prompt has 6"),
        (5, torch.tensor([0], dtype=torch.int32), ints(5), ints(0), r"slots must be int64 \[k\] on the CPU"),
        (5, ints(0), torch.tensor([5.0]), ints(0), "lengths must be int64"),
    ],
)
def test_an_update_that_does_not_fit_is_refused_and_changes_nothing(
    bank, rows, slots, lengths, starts, message
):
    with pytest.raises(PoolingStateError, match=message):
        bank.update(torch.ones(rows, 8), slots, lengths, starts)
    hidden = torch.randn(10, 8)
    feed(bank, [(0, hidden, 0, 10)])
    assert relative_l2(bank.finish(ints(0))[0], closed_form(Head.MEAN, hidden)) < 1e-6


@pytest.mark.parametrize("hidden", [torch.ones(5, 7), torch.ones(5), torch.ones(5, 8, dtype=torch.int64)])
def test_hidden_states_of_the_wrong_form_are_refused(bank, hidden):
    with pytest.raises(PoolingStateError, match=r"hidden must be floating point \[n, 8\]"):
        bank.update(hidden, ints(0), ints(5), ints(0))


def test_hidden_states_of_another_device_are_refused(bank):
    with pytest.raises(PoolingStateError, match="hidden is on meta, the pooling state on cpu"):
        bank.update(torch.ones(5, 8, device="meta"), ints(0), ints(5), ints(0))


def test_a_step_without_embedding_rows_is_allowed(bank):
    bank.update(torch.empty(0, 8), ints(), ints(), ints())
    assert bank.finish(ints()).shape == (0, 8)


def test_a_chunk_repeated_or_left_out_is_refused(bank):
    hidden = torch.randn(10, 8)
    feed(bank, [(0, hidden, 0, 4)])
    for start in (0, 3, 5):
        with pytest.raises(PoolingStateError, match="but 4 tokens were seen"):
            feed(bank, [(0, hidden, start, 2)])


def test_finishing_early_is_refused(bank):
    feed(bank, [(2, torch.randn(6, 8), 0, 5)])
    with pytest.raises(PoolingStateError, match="slot 2: cannot finish after 5 of 6 tokens"):
        bank.finish(ints(2))


def test_slots_open_close_and_are_counted(bank):
    assert bank.open_slots == 2
    bank.close(0)
    bank.close(2)
    assert bank.open_slots == 0
    with pytest.raises(PoolingStateError, match="slot 0 is not open"):
        bank.close(0)
    with pytest.raises(PoolingStateError, match=r"slots \[0\] are not open"):
        bank.finish(ints(0))
    with pytest.raises(PoolingStateError, match="slot 0 is not open"):
        bank.snapshot(0)


def test_opening_again_starts_from_nothing(bank):
    feed(bank, [(0, torch.ones(10, 8) * 100, 0, 7)])
    bank.open(0, Head.MEAN, 3)
    hidden = torch.randn(3, 8)
    feed(bank, [(0, hidden, 0, 3)])
    assert bank.open_slots == 2
    assert relative_l2(bank.finish(ints(0))[0], closed_form(Head.MEAN, hidden)) < 1e-6


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (PrefixState(Head.CLS, 2, torch.zeros(8)), "pooled with cls, the request asks for mean"),
        (PrefixState(Head.MEAN, 11, torch.zeros(8)), "a prefix of 11 tokens does not fit a prompt of 10"),
        (PrefixState(Head.MEAN, -1, torch.zeros(8)), "a prefix of -1 tokens"),
        (PrefixState(Head.MEAN, 2, torch.zeros(7)), r"must be float32 \[8\]"),
        (PrefixState(Head.MEAN, 2, torch.zeros(8).bfloat16()), "must be float32"),
    ],
)
def test_a_prefix_that_does_not_fit_is_refused_and_the_slot_keeps_its_request(bank, prefix, message):
    with pytest.raises(PoolingStateError, match=message):
        bank.open(2, Head.MEAN, 10, prefix)
    feed(bank, [(2, torch.ones(6, 8), 0, 6)])
    assert bank.finish(ints(2)).tolist() == [[1.0] * 8]


def test_the_buffered_head_has_no_prefix_and_no_snapshot(bank):
    with pytest.raises(PoolingStateError, match="cannot start from a prefix"):
        bank.open(1, Head.BUFFERED, 10, PrefixState(Head.BUFFERED, 2, torch.zeros(8)))
    bank.open(1, Head.BUFFERED, 10)
    with pytest.raises(PoolingStateError, match=r"no O\(d\) state"):
        bank.snapshot(1)


def test_sizes_lengths_and_unconfigured_heads_are_refused():
    for sizes in ((0, 8), (4, 0)):
        with pytest.raises(PoolingConfigError, match="must be at least 1"):
            PoolingBank(*sizes)
    bank = PoolingBank(4, 8)
    with pytest.raises(PoolingStateError, match="at least 1 token, not 0"):
        bank.open(0, Head.MEAN, 0)
    with pytest.raises(PoolingConfigError, match="not configured"):
        bank.open(0, Head.BUFFERED, 5)
    with pytest.raises(PoolingStateError, match="slot 4 does not exist"):
        bank.open(4, Head.MEAN, 5)
    assert not bank.fits(Head.BUFFERED, 1)
    assert bank.fits(Head.MEAN, 10**6)


def test_memory_is_two_float32_rows_and_21_bytes_a_slot():
    assert PoolingBank(64, 576).memory_bytes == 64 * (2 * 4 * 576 + 21)


def test_buffered_memory_is_bounded_and_freed():
    bank = make_bank(num_slots=3, hidden_size=8, max_tokens=130)  # 3 pages of 64
    assert bank.memory_bytes == 3 * (2 * 4 * 8 + 21) + 192 * 8 * 4 + 3 * 3 * 8
    bank.open(0, Head.BUFFERED, 65)
    assert bank.fits(Head.BUFFERED, 64)
    assert not bank.fits(Head.BUFFERED, 65)
    with pytest.raises(PoolingCapacityError, match=r"of 65 tokens .* 64 of 192 .* free \(limit 130\)"):
        bank.open(1, Head.BUFFERED, 65)
    assert bank.open_slots == 1
    bank.close(0)
    bank.open(1, Head.BUFFERED, 192)
    bank.open(1, Head.BUFFERED, 100)  # a restart gives its own pages back first
    assert bank.fits(Head.BUFFERED, 64)
