"""What tensor cores cut off, measured and undone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from loopscope.readout.affine.fused import logits


def cut_off(states, rows):
    """Products over the width, 16 entries at a time, with 24 bits kept by cutting off: in NumPy, bit by bit."""
    terms = states.double()[:, None, :] * rows.double()[None, :, :]
    steps = terms.reshape(*terms.shape[:2], -1, 16).sum(-1).numpy()
    total = np.zeros(steps.shape[:2])
    for index in range(steps.shape[2]):
        mantissa, exponent = np.frexp(total + steps[..., index])
        total = np.ldexp(np.trunc(mantissa * 2.0**24) / 2.0**24, exponent)
    return torch.from_numpy(total).float()


@pytest.fixture
def head():
    chance = torch.Generator().manual_seed(3)
    return (0.05 * torch.randn(48, 2048, generator=chance)).to(torch.bfloat16)


def test_arithmetic_that_rounds_has_next_to_none(head):
    assert float((logits.growth_of(head) - 1.0).abs().max()) <= 3e-7


def test_what_is_cut_off_is_put_back(head, monkeypatch):
    monkeypatch.setattr(logits, "products", cut_off)
    likely, found = logits.growth_of(head)
    assert 1.5e-6 < float(found) - 1.0 < float(likely) - 1.0 < 4e-6
    chance = torch.Generator().manual_seed(4)
    states = torch.randn(32, 2048, generator=chance).to(torch.bfloat16)
    true = states.double() @ head.double().T
    raw = cut_off(states, head).double()
    lean = lambda z: float((true * (z - true)).sum() / (true**2).sum())  # noqa: E731
    assert abs(lean(raw * found.double())) < 0.1 * abs(lean(raw))
    assert float((raw * found.double() - true).std()) < 0.75 * float((raw - true).std())


def test_the_variance_of_a_nearly_uniform_softmax_stays_a_little_too_small(monkeypatch):
    """Larger logits lose more: the one factor that moments get is not enough for a softmax that leans to them."""
    chance = torch.Generator().manual_seed(5)
    width, entries, tokens = 2048, 1500, 12
    head = (0.9 * torch.randn(entries, width, generator=chance) / width**0.5).to(torch.bfloat16)
    h = torch.randn(tokens, width, generator=chance)
    h_plus = (h + 0.3 * torch.randn(tokens, width, generator=chance)).to(torch.bfloat16)
    h = h.to(torch.bfloat16)
    monkeypatch.setattr(logits, "products", cut_off)
    monkeypatch.setattr(logits, "_ROWS", 96)
    likely, anywhere = logits.growth_of(head).double()

    def variance(z, v):
        p = torch.softmax(z, 1)
        return (p * (v - (p * v).sum(1, keepdim=True)) ** 2).sum(1)

    z0, z1 = (x.double() @ head.double().T for x in (h, h_plus))
    raw0, raw1 = (torch.cat([cut_off(row, head) for row in x.split(4)]).double() for x in (h, h_plus))
    true = variance(z0, z1 - z0)
    off = float((variance(likely * raw0, anywhere * (raw1 - raw0)) / true - 1.0).mean())
    uncorrected = float((variance(raw0, raw1 - raw0) / true - 1.0).mean())
    assert uncorrected < -3e-6
    assert -6e-7 < off < -0.5e-7
    by_weights = float((variance(likely * raw0, z1 - z0) / true - 1.0).mean())
    assert abs(by_weights) < 0.5 * abs(off), "the displacements' loss, not the weights'"


def test_it_is_measured_once_for_each_head(head, monkeypatch):
    first = logits.growth_of(head)
    monkeypatch.setattr(logits, "products", None)
    assert logits.growth_of(head) is first


def test_and_again_when_the_head_changes(head):
    first = logits.growth_of(head)
    head.mul_(2.0)
    assert logits.growth_of(head) is not first
