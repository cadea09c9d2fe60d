"""NaN and infinity in some rows never move another request's vector by a single bit, nor a later one's."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pooling_closed_forms import feed, make_bank
from torch import nn

from orthrus.pooling import Head
from orthrus.pooling.finishing import finish_vectors

WIDTH = 16
BAD = [float("nan"), float("inf")]
USED = {Head.CLS: lambda at, n: at == 0, Head.LAST: lambda at, n: at == n - 1}


@st.composite
def batches(draw):
    """Requests (head, length, bad rows), and the chunks in which steps take them in, interleaved."""
    requests = draw(
        st.lists(
            st.tuples(st.sampled_from(list(Head)), st.integers(1, 150)).flatmap(
                lambda drawn: st.tuples(
                    st.just(drawn[0]),
                    st.just(drawn[1]),
                    st.dictionaries(st.integers(0, drawn[1] - 1), st.sampled_from(BAD), max_size=3),
                )
            ),
            min_size=2,
            max_size=5,
        )
    )
    chunks = draw(st.lists(st.integers(1, 90), min_size=1, max_size=6))
    return requests, chunks


def pooled(requests, hidden, chunks):
    """The bank and its vectors after steps in which every open request gets the next chunk size."""
    bank = make_bank(num_slots=len(requests), hidden_size=WIDTH)
    for slot, (head, length, _) in enumerate(requests):
        bank.open(slot, head, length)
    starts, step = [0] * len(requests), 0
    while any(start < length for start, (_, length, _) in zip(starts, requests, strict=True)):
        parts = []
        for slot, (_, length, _) in enumerate(requests):
            size = min(chunks[(step + slot) % len(chunks)], length - starts[slot])
            if size:
                parts.append((slot, hidden[slot], starts[slot], size))
                starts[slot] += size
        feed(bank, parts)
        step += 1
    return bank, bank.finish(torch.arange(len(requests)))


def finished(vectors, layer):
    count = len(vectors)
    return finish_vectors(vectors, [layer], [None, 3] * (count // 2) + [5] * (count % 2), [True] * count)


@settings(max_examples=60, deadline=None)
@given(batch=batches(), seed=st.integers(0, 99))
def test_bad_rows_reach_no_other_vector(batch, seed):
    requests, chunks = batch
    torch.manual_seed(seed)
    clean = [torch.randn(length, WIDTH) + 1 for _, length, _ in requests]
    dirty = [rows.clone() for rows in clean]
    for rows, (_, _, bad) in zip(dirty, requests, strict=True):
        for at, value in bad.items():
            rows[at] = value
    spoiled = {
        slot
        for slot, (head, length, bad) in enumerate(requests)
        if any(USED.get(head, lambda at, n: True)(at, length) for at in bad)
    }
    bank, got = pooled(requests, dirty, chunks)
    _, wanted = pooled(requests, clean, chunks)
    layer = nn.Linear(WIDTH, 8).requires_grad_(False)
    after, before = finished(got, layer), finished(wanted, layer)
    for slot in range(len(requests)):
        if slot in spoiled:
            assert not got[slot].isfinite().all()
        else:
            assert torch.equal(got[slot], wanted[slot])
            assert torch.equal(after.vectors[slot], before.vectors[slot])
    assert after.nonfinite == sorted(spoiled)
    # The slots' next owners.
    for slot, (head, length, _) in enumerate(requests):
        bank.close(slot)
        bank.open(slot, head, length)
        feed(bank, [(slot, clean[slot], 0, length)])
    again = bank.finish(torch.arange(len(requests)))
    assert again.isfinite().all()
