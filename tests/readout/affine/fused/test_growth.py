"""What tensor cores cut off, measured and undone."""

from __future__ import annotations

import pytest
import torch

from loopscope.readout.affine.fused import growth
from loopscope.readout.affine.fused.logits import target_logits


def cut_off(states, rows, grow_halfway=1.0, halfway=0):
    """Products over the width, 16 entries at a time, with 24 of float64's 53 bits kept by cutting off."""
    states, rows = states.double(), rows.double()
    total = torch.zeros(states.shape[0], rows.shape[0], dtype=torch.float64)
    for first in range(0, states.shape[1], 16):
        if first == halfway:
            total = (total * float(grow_halfway)).float().double()
        total.addmm_(states[:, first : first + 16], rows[:, first : first + 16].T)
        total.view(torch.int64).bitwise_and_(-1 << 29)
    return total.float()


@pytest.fixture
def head():
    chance = torch.Generator().manual_seed(3)
    return (0.05 * torch.randn(48, 2048, generator=chance)).to(torch.bfloat16)


def left_anywhere(found):
    """What is still to be put back on average, of any logit."""
    return (float(found.spread[0]) - (float(found.logits[1]) - 1.0)) / 2


def test_arithmetic_that_rounds_has_next_to_none(head):
    found = growth.growth_of(head)
    assert float((found.logits - 1.0).abs().max()) <= 3e-7
    assert float(found.spread.abs().max()) <= 6e-7


def test_what_is_cut_off_is_put_back(head, monkeypatch):
    monkeypatch.setattr(growth, "products", cut_off)
    found = growth.growth_of(head)
    finished, halfway = (float(factor) for factor in found.logits)
    anywhere = 1.0 + left_anywhere(found)
    assert found.halfway == 1024
    assert 1.5e-6 < float(found.spread[0]) / 2 < halfway - 1.0 < 4e-6
    assert 0.2 * (halfway - 1.0) < anywhere - 1.0 < finished - 1.0 < 0.6 * (halfway - 1.0)
    chance = torch.Generator().manual_seed(4)
    states = torch.randn(32, 2048, generator=chance).to(torch.bfloat16)
    true = states.double() @ head.double().T
    raw, grown = cut_off(states, head).double(), anywhere * cut_off(states, head, halfway, 1024).double()
    lean = lambda z: float((true * (z - true)).sum() / (true**2).sum())  # noqa: E731
    assert abs(lean(grown)) < 0.1 * abs(lean(raw))
    assert float((grown - true).std()) < 0.5 * float((raw - true).std())


WIDTH, ENTRIES, TOKENS = 2048, 4000, 16


@pytest.fixture(scope="module")
def flat():
    """A head whose softmaxes are nearly uniform, states, and noise; what tensor cores would cut off is known of it."""
    chance = torch.Generator().manual_seed(5)
    head = (0.9 * torch.randn(ENTRIES, WIDTH, generator=chance) / WIDTH**0.5).to(torch.bfloat16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "products", cut_off)
        growth.growth_of(head)
    return head, torch.randn(TOKENS, WIDTH, generator=chance), torch.randn(TOKENS, WIDTH, generator=chance)


def variance_errors(head, h, h_plus):
    """Relative errors of Var[v] under softmax(z⁰): by one factor for all displacements, and by each token's own."""
    h, h_plus = h.to(torch.bfloat16), h_plus.to(torch.bfloat16)
    measured = growth.growth_of(head)
    own = target_logits(h, h_plus, head, None, torch.zeros(TOKENS, dtype=torch.int64), measured)[2].double()

    def variance(z, v):
        p = torch.softmax(z, 1)
        return (p * (v - (p * v).sum(1, keepdim=True)) ** 2).sum(1)

    z0, z1 = (x.double() @ head.double().T for x in (h, h_plus))
    raw0, raw1 = (cut_off(x, head, measured.logits[1], measured.halfway).double() for x in (h, h_plus))
    true, likely = variance(z0, z1 - z0), float(measured.logits[0])
    factors = torch.full((TOKENS,), 1.0 + left_anywhere(measured)), 1.0 + own
    return [variance(likely * raw0, (raw1 - raw0) * factor[:, None]) / true - 1.0 for factor in factors]


def test_a_softmax_that_leans_to_larger_logits_has_the_right_variance(flat):
    head, h, noise = flat
    one, own = variance_errors(head, h, h + 0.3 * noise)
    assert float(one.mean()) < -1.2e-7, "larger logits lose more"
    assert abs(float(own.mean())) < 0.7e-7
    assert float(own.square().mean().sqrt()) < 2.2e-7


@pytest.mark.parametrize("early", [True, False])
def test_wherever_in_the_width_an_update_lies_its_variance_is_right(flat, early):
    """What is added early loses more, and what came before halfway has grown by as much as likely logits need."""
    head, h, noise = flat
    is_early = torch.arange(WIDTH) < WIDTH // 2
    _, own = variance_errors(head, h, h + noise * torch.where(is_early == early, 0.3, 0.06))
    assert abs(float(own.mean())) < 2.5e-7
    assert float(own.square().mean().sqrt()) < 3e-7


def test_growing_halfway_knows_what_no_factor_on_a_finished_logit_does(head, monkeypatch):
    """Whether a likely logit came early in the width or late: much of what one factor leaves."""
    monkeypatch.setattr(growth, "products", cut_off)
    found = growth.growth_of(head)
    chance, entries = torch.Generator().manual_seed(6), torch.arange(48).repeat(20)[:, None]
    rows = head[entries[:, 0]].float()
    states = torch.randn(960, 2048, generator=chance) + 5.0 * rows / rows.norm(dim=1, keepdim=True)
    states = states.to(torch.bfloat16)
    halves = torch.eye(2).repeat_interleave(1024, 1)
    early, late = (((states * half).double() @ head.double().T).gather(1, entries)[:, 0] for half in halves)

    def left(factor, *options):
        missing = early + late - float(factor) * cut_off(states, head, *options).double().gather(1, entries)[:, 0]
        return float(torch.corrcoef(torch.stack([missing, early - late]))[0, 1]), float(missing.square().mean().sqrt())

    before, after = left(found.logits[1]), left(found.logits[0], found.logits[1], found.halfway)
    assert before[0] > 0.5 > 0.25 > abs(after[0])
    assert after[1] < 0.75 * before[1]


def test_it_is_measured_once_for_each_head(head, monkeypatch):
    first = growth.growth_of(head)
    monkeypatch.setattr(growth, "products", None)
    assert growth.growth_of(head) is first


def test_and_again_when_the_head_changes(head):
    first = growth.growth_of(head)
    head.mul_(2.0)
    assert growth.growth_of(head) is not first
