"""The one-pass answers in float64 that the bank is tested against, and the driver that feeds it chunks."""

import torch

from orthrus.pooling import BufferedHead, Head, PoolingBank


def first_plus_max(hidden):
    """A deterministic function over all hidden states, of width d."""
    return hidden[0] + hidden.max(dim=0).values


def closed_form(head, hidden):
    rows = hidden.double()
    n = len(rows)
    if head is Head.MEAN:
        return rows.sum(0) / n
    if head is Head.WEIGHTED_MEAN:
        weights = torch.arange(1, n + 1, dtype=torch.float64)
        return weights @ rows / (n * (n + 1) / 2)
    if head is Head.CLS:
        return rows[0]
    return rows[-1] if head is Head.LAST else first_plus_max(rows)


def make_bank(num_slots=4, hidden_size=8, max_tokens=1024):
    buffered = BufferedHead(first_plus_max, "tests:first_plus_max", max_tokens)
    return PoolingBank(num_slots, hidden_size, "cpu", buffered)


def feed(bank, pieces):
    """One step: `pieces` is a list of (slot, hidden [n, d] of the whole prompt, start, length)."""
    bank.update(
        torch.cat([hidden[start : start + length] for _, hidden, start, length in pieces]),
        *(torch.tensor([piece[i] for piece in pieces]) for i in (0, 3, 2)),
    )


def relative_l2(got, want):
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-30))
