"""Drawn initial states: distribution, seeds, and what they do not depend on."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from loopscope.models.families.decoder import SEED, InitialState

STD = math.sqrt(2 / (5 * 64))
HUGINN = InitialState(64, STD, 8.0)


def test_a_row_depends_on_its_seed_and_position_alone():
    alone = HUGINN.draw([7], [5])
    together = HUGINN.draw([3, 7, 7], [2, 5, 40])
    assert torch.equal(together[1, :5], alone[0])
    assert torch.equal(together[2, :5], alone[0])
    assert not torch.equal(together[0, :2], alone[0, :2])


@pytest.mark.parametrize("rule", ["question", "paper", "official"])
def test_a_truncated_normal(rule):
    drawn = InitialState(64, STD, 8.0, rule=rule, dtype=torch.float32).draw([0], [1000])[0]
    scaled = (drawn / (STD * 8.0)).double().flatten().numpy()
    assert abs(scaled).max() <= 3 * (1 + 1e-6)
    assert stats.kstest(scaled, stats.truncnorm(-3, 3).cdf).pvalue > 1e-3


def test_states_are_bfloat16_within_the_bound():
    drawn = HUGINN.draw([0], [2000])
    assert drawn.dtype == torch.bfloat16
    bound = torch.tensor(3 * STD * 8.0).to(torch.bfloat16)
    assert drawn.abs().max() <= bound
    assert float(bound) == pytest.approx(1.897, abs=2e-3)


def test_the_official_order_throws_one_normal_tensor_away_first():
    drawn = InitialState(64, STD, 8.0, rule="official").draw([2], [6])[0]
    generator = torch.Generator().manual_seed(SEED + 2)
    expected = torch.empty(1, 6, 64, dtype=torch.bfloat16)
    torch.randn(1, 6, 64, dtype=torch.bfloat16, generator=generator)
    torch.nn.init.trunc_normal_(expected, 0.0, STD, -3 * STD, 3 * STD, generator=generator)
    assert torch.equal(drawn, expected[0] * 8.0)


def test_the_papers_sentence_taken_literally():
    drawn = InitialState(64, STD, 8.0, rule="paper").draw([2], [6])[0]
    torch.manual_seed(SEED + 2)
    expected = torch.nn.init.trunc_normal_(torch.empty(1, 6, 64, dtype=torch.bfloat16), 0.0, STD, -3 * STD, 3 * STD)
    assert torch.equal(drawn, expected[0] * 8.0)


def test_the_official_order_ignores_padding_and_the_batch():
    official = InitialState(64, STD, 8.0, rule="official")
    assert torch.equal(official.draw([2, 1], [6, 11])[0, :6], official.draw([2], [6])[0])
