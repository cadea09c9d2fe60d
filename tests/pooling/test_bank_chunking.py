"""Any chunking, in any order, beside anything else, gives the one-pass vector."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pooling_closed_forms import closed_form, feed, make_bank, relative_l2

from orthrus.pooling import Head

WIDTH = 8
TOLERANCE = 1e-6

requests = st.lists(st.tuples(st.sampled_from(list(Head)), st.integers(1, 200)), min_size=1, max_size=9)


@settings(deadline=None, max_examples=40)
@given(requests=requests, dtype=st.sampled_from([torch.bfloat16, torch.float32]), data=st.data())
def test_interleaved_chunks_give_the_one_pass_vectors(requests, dtype, data):
    seed = data.draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    # A common offset, as real hidden states have: without it, a mean near zero measures cancellation only.
    offset = torch.randn(WIDTH, generator=generator)
    prompts = [(torch.randn(n, WIDTH, generator=generator) + offset).to(dtype) for _, n in requests]
    bank = make_bank(num_slots=4)
    waiting, running, done = list(range(len(requests))), {}, {}
    while waiting or running:
        while waiting and len(running) < bank.num_slots:
            free = sorted(set(range(bank.num_slots)) - {slot for slot, _ in running.values()})
            slot, request = data.draw(st.sampled_from(free)), waiting.pop(0)
            bank.open(slot, requests[request][0], requests[request][1])
            running[request] = (slot, 0)
        assert bank.open_slots == len(running)
        pieces = []
        for request in data.draw(st.permutations(sorted(running)))[: data.draw(st.integers(1, len(running)))]:
            slot, seen = running[request]
            length = data.draw(st.integers(1, requests[request][1] - seen))
            pieces.append((slot, prompts[request], seen, length))
            running[request] = (slot, seen + length)
        feed(bank, pieces)
        complete = [r for r, (_, seen) in running.items() if seen == requests[r][1]]
        vectors = bank.finish(torch.tensor([running[r][0] for r in complete], dtype=torch.int64))
        for request, vector in zip(complete, vectors, strict=True):
            done[request] = vector
            bank.close(running.pop(request)[0])
    assert bank.open_slots == 0
    assert len(done) == len(requests)
    for request, (head, _) in enumerate(requests):
        want = closed_form(head, prompts[request])
        assert done[request].dtype == torch.float32
        assert relative_l2(done[request], want) < TOLERANCE, (head, dtype)


@pytest.mark.parametrize("chunk", [1, 7, 17, 256, 2047, 2048])
@pytest.mark.parametrize("head", [Head.MEAN, Head.WEIGHTED_MEAN])
def test_equal_values_do_not_drift_with_the_number_of_chunks(head, chunk):
    # The worst case of a plain float32 running sum: every addition rounds the same way.
    hidden = torch.full((2048, WIDTH), 0.1) + torch.linspace(0, 0.05, WIDTH)
    bank = make_bank()
    bank.open(0, head, len(hidden))
    for start in range(0, len(hidden), chunk):
        feed(bank, [(0, hidden, start, min(chunk, len(hidden) - start))])
    assert relative_l2(bank.finish(torch.tensor([0]))[0], closed_form(head, hidden)) < TOLERANCE


@pytest.mark.parametrize("head", [h for h in Head if h is not Head.BUFFERED])
def test_a_prefix_installed_from_a_snapshot_equals_computing_it(head):
    hidden = torch.randn(300, WIDTH) + 1
    bank = make_bank()
    bank.open(0, head, 300)
    feed(bank, [(0, hidden, 0, 130)])
    prefix = bank.snapshot(0)
    feed(bank, [(0, hidden, 130, 170)])
    bank.open(3, head, 300, prefix)
    feed(bank, [(3, hidden, 130, 170)])
    assert prefix.tokens == 130
    vectors = bank.finish(torch.tensor([3, 0]))
    for vector in vectors:
        assert relative_l2(vector, closed_form(head, hidden)) < TOLERANCE


@pytest.mark.parametrize("head", list(Head))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_row_stays_in_its_own_request_and_leaves_with_it(head, bad):
    good, poisoned = torch.randn(70, WIDTH) + 1, torch.full((70, WIDTH), bad)
    bank = make_bank()
    for slot in (0, 1, 2):
        bank.open(slot, head, 70)
    feed(bank, [(0, good, 0, 70), (1, poisoned, 0, 70), (2, good, 0, 70)])
    vectors = bank.finish(torch.tensor([0, 1, 2]))
    assert not vectors[1].isfinite().any()
    for row in (0, 2):
        assert relative_l2(vectors[row], closed_form(head, good)) < TOLERANCE
    bank.open(1, head, 70)
    feed(bank, [(1, good, 0, 70)])
    assert relative_l2(bank.finish(torch.tensor([1]))[0], closed_form(head, good)) < TOLERANCE


@pytest.mark.parametrize("head", list(Head))
def test_a_bank_made_in_inference_mode_works_outside_it_and_inside(head):
    with torch.inference_mode():
        bank = make_bank()
    hidden = torch.randn(5, WIDTH)
    bank.open(0, head, 5)
    with torch.inference_mode():
        feed(bank, [(0, hidden.clone(), 0, 3)])
    feed(bank, [(0, hidden, 3, 2)])
    assert relative_l2(bank.finish(torch.tensor([0]))[0], closed_form(head, hidden)) < TOLERANCE
