from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orthrus.pooling import Head, PoolingConfigError, PoolingStateError, SpanSums
from orthrus.pooling.spans import check_spans

STREAMING = [head for head in Head if head is not Head.BUFFERED]


def defined(rows, head):
    """The definition of each head over the rows of one span."""
    rows = rows.double()
    weights = torch.arange(1, len(rows) + 1, dtype=torch.float64)
    return {
        Head.MEAN: lambda: rows.mean(0),
        Head.WEIGHTED_MEAN: lambda: (rows * weights[:, None]).sum(0) / weights.sum(),
        Head.CLS: lambda: rows[0],
        Head.LAST: lambda: rows[-1],
    }[head]().float()


@st.composite
def documents(draw):
    tokens = draw(st.integers(1, 40))
    edge = st.integers(0, tokens)
    pairs = draw(
        st.lists(st.tuples(edge, edge).filter(lambda pair: pair[0] != pair[1]), min_size=1, max_size=6)
    )
    cuts = sorted(draw(st.sets(st.integers(1, tokens - 1), max_size=5))) if tokens > 1 else []
    return tokens, [tuple(sorted(pair)) for pair in pairs], [0, *cuts, tokens]


@given(documents(), st.sampled_from(STREAMING))
@settings(max_examples=150, deadline=None)
def test_any_spans_over_any_chunks_equal_the_definition(document, head):
    tokens, spans, cuts = document
    hidden = torch.randn(tokens, 4, generator=torch.Generator().manual_seed(tokens))
    sums = SpanSums(spans, head, 4)
    for start, end in pairwise(cuts):
        sums.update(hidden[start:end], start)
    wanted = torch.stack([defined(hidden[start:end], head) for start, end in spans])
    torch.testing.assert_close(sums.finish(), wanted, rtol=1e-6, atol=1e-6)


def test_the_state_does_not_grow_with_the_document():
    sums = SpanSums([(0, 10), (5, 5000)], Head.MEAN, 16)
    before = sums.memory_bytes
    for start in range(0, 5000, 1000):
        sums.update(torch.ones(1000, 16), start)
    assert sums.memory_bytes == before == 2 * 16 * 8
    assert sums.finish().tolist() == [[1.0] * 16] * 2


def test_bfloat16_rows_are_summed_exactly():
    hidden = torch.rand(3000, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    sums = SpanSums([(1, 2999)], Head.MEAN, 8)
    sums.update(hidden, 0)
    torch.testing.assert_close(sums.finish()[0], hidden[1:2999].double().mean(0).float(), rtol=1e-7, atol=0)


def test_nan_outside_a_span_stays_outside():
    hidden = torch.ones(6, 2)
    hidden[4] = torch.nan
    sums = SpanSums([(0, 3), (3, 6)], Head.MEAN, 2)
    sums.update(hidden, 0)
    first, second = sums.finish()
    assert first.tolist() == [1.0, 1.0]
    assert bool(second.isnan().all())


def test_a_gap_and_an_early_end_are_refused():
    sums = SpanSums([(0, 4)], Head.MEAN, 2)
    sums.update(torch.ones(2, 2), 0)
    with pytest.raises(PoolingStateError, match="start at position 3, but 2 tokens were seen"):
        sums.update(torch.ones(1, 2), 3)
    with pytest.raises(PoolingStateError, match="after 2 tokens: a span ends at 4"):
        sums.finish()


def test_the_buffered_head_has_no_spans():
    with pytest.raises(PoolingConfigError, match="buffered head"):
        SpanSums([(0, 1)], Head.BUFFERED, 2)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([], "allowed: a list of"),
        ("ab", "allowed: a list of"),
        ([[0, 3], [0]], r"spans\[1\] is \[0\]"),
        ([[0, True]], r"spans\[0\] is \[0, True\]"),
        ([[0, 1.5]], r"spans\[0\]"),
        ([[2, 2]], r"spans\[0\] is \[2, 2\]; allowed: 0 <= start < end <= 9"),
        ([[-1, 2]], r"spans\[0\] is \[-1, 2\]"),
        ([[0, 9], [3, 10]], r"spans\[1\] is \[3, 10\]"),
        ([[0, 1]] * 5, "5 spans in one input; at most 4"),
    ],
)
def test_spans_that_cannot_be_served_say_why(spans, message):
    with pytest.raises(PoolingConfigError, match=message):
        check_spans(spans, tokens=9, most=4)


def test_spans_may_overlap_and_come_in_any_order():
    assert check_spans([[3, 9], [0, 4]], tokens=9, most=4) == ((3, 9), (0, 4))
