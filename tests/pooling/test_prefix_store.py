import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orthrus.pooling.bank import PoolingBank
from orthrus.pooling.heads import Head
from orthrus.pooling.ledger import _CODES
from orthrus.pooling.prefix_store import PrefixStore, boundary_states
from orthrus.pooling.segments import Segments

HEADS = [Head.MEAN, Head.WEIGHTED_MEAN, Head.CLS]
D = 8


@st.composite
def requests(draw):
    count = draw(st.integers(1, 4))
    return [
        (draw(st.sampled_from(HEADS)), draw(st.integers(0, 40)), draw(st.integers(1, 60)))
        for _ in range(count)
    ]


def expected(head, rows, end):
    rows = rows[:end].double()
    if head is Head.CLS:
        return rows[0]
    weights = torch.arange(1, end + 1).double() if head is Head.WEIGHTED_MEAN else torch.ones(end).double()
    return (rows * weights[:, None]).sum(0)


def step_of(hidden, slots, lengths, starts, heads):
    lengths = torch.tensor(lengths)
    return Segments(
        hidden,
        torch.tensor(slots),
        lengths,
        torch.tensor(starts),
        lengths.cumsum(0) - lengths,
        torch.tensor([_CODES[head] for head in heads], dtype=torch.int8),
    )


@given(requests(), st.integers(1, 17), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_states_at_boundaries_equal_closed_formulas_and_restart_exactly(wanted, block, seed):
    torch.manual_seed(seed)
    prompts = [torch.randn(seen + length, D) for _, seen, length in wanted]
    heads = [head for head, _, _ in wanted]
    bank = PoolingBank(len(wanted), D)
    for slot, (head, seen, _) in enumerate(wanted):
        bank.open(slot, head, len(prompts[slot]))
        if seen:
            bank.update(prompts[slot][:seen], torch.tensor([slot]), torch.tensor([seen]), torch.tensor([0]))
    starts, lengths = [seen for _, seen, _ in wanted], [length for _, _, length in wanted]
    hidden = torch.cat([prompt[seen:] for prompt, seen in zip(prompts, starts, strict=True)])
    cuts = [
        (i, end)
        for i, (_, seen, length) in enumerate(wanted)
        for end in range(block, seen + length + 1, block)
        if end > seen
    ]
    if not cuts:
        return
    owners, ends = map(torch.tensor, zip(*cuts, strict=True))
    step = step_of(hidden, range(len(wanted)), lengths, starts, heads)
    states = boundary_states(bank, step, owners, ends)
    store = PrefixStore(len(cuts), D)
    store.save(torch.arange(len(cuts)), states)
    for row, (i, end) in enumerate(cuts):
        want = expected(heads[i], prompts[i], end)
        assert torch.allclose(states[row].double(), want, rtol=1e-5, atol=1e-4 * want.abs().max())
        again = PoolingBank(1, D)
        again.open(0, heads[i], len(prompts[i]), store.load(row, heads[i], end))
        rest = prompts[i][end:]
        if len(rest):
            again.update(rest, torch.tensor([0]), torch.tensor([len(rest)]), torch.tensor([end]))
        whole = PoolingBank(1, D)
        whole.open(0, heads[i], len(prompts[i]))
        whole.update(prompts[i], torch.tensor([0]), torch.tensor([len(prompts[i])]), torch.tensor([0]))
        slot = torch.tensor([0])
        cosine = torch.cosine_similarity(again.finish(slot), whole.finish(slot))
        assert cosine.item() > 0.99999


def test_the_buffer_is_counted():
    assert PrefixStore(10, D).memory_bytes == 10 * D * 4
