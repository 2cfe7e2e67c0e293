"""The exit distribution against its definition in exact arithmetic, and its rounding in BF16."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.models.families.ouro import exit_distribution, state_at_exit, weighted_logits


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-6, 6), min_size=1, max_size=8), st.floats(0.01, 1.0))
def test_definition_in_exact_arithmetic(logits, threshold):
    gates = exit_distribution([torch.tensor([value], dtype=torch.float64) for value in logits])
    stop = [Fraction(float(value)) for value in gates.stop[0]]
    pdf, remaining = [], Fraction(1)
    for chance in stop[:-1]:
        pdf.append(chance * remaining)
        remaining *= 1 - chance
    pdf.append(remaining)
    assert float(sum(pdf)) == 1.0
    for t, chance in enumerate(pdf):
        assert float(gates.pdf[0, t]) == pytest.approx(float(chance), rel=1e-12, abs=1e-300)
    cdf = [sum(pdf[: t + 1]) for t in range(len(pdf))]
    if all(abs(float(value) - threshold) > 1e-12 for value in cdf):
        expected = next((t + 1 for t, value in enumerate(cdf) if value >= threshold), len(cdf))
        assert int(gates.exit_depth(threshold)) == expected


def test_a_threshold_above_one_is_the_last_loop():
    gates = exit_distribution([torch.full((2, 3), 4.0)] * 5)
    assert (gates.exit_depth(1.5) == 5).all()


def test_bfloat16_can_reach_one_before_the_last_loop_where_float64_does_not():
    logits = [torch.full((1,), value, dtype=torch.bfloat16) for value in (3.0, 3.0, 3.0, 3.0)]
    low = exit_distribution(logits)
    high = exit_distribution([value.double() for value in logits])
    assert low.cdf.dtype == torch.bfloat16
    assert int(low.exit_depth(1.0)) < 4
    assert int(high.exit_depth(1.0)) == 4


def test_each_position_takes_the_state_of_its_own_depth():
    states = [torch.full((2, 3, 4), float(t)) for t in (1, 2, 3)]
    depth = torch.tensor([[1, 2, 3], [3, 3, 1]])
    assert torch.equal(state_at_exit(states, depth)[..., 0], depth.float())


def test_weighted_logits_mix_by_the_pdf():
    logits = [torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])]
    gates = exit_distribution([torch.zeros(1, 1), torch.zeros(1, 1)])
    assert weighted_logits(logits, gates.pdf).tolist() == [[[0.5, 0.5]]]


def test_no_depth_is_refused():
    with pytest.raises(LoopscopeError, match="one depth at least"):
        exit_distribution([])
