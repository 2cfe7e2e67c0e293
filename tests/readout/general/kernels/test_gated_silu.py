"""The gated activation of series in one pass, against the plain rule."""

from __future__ import annotations

import pytest
import torch

from loopscope.models.layers.linear import gated_silu_joined
from loopscope.readout.general.core import Series


def _gated(both):
    return gated_silu_joined(both, plain=False)


@pytest.mark.parametrize(("order", "shape"), [(1, (3, 26)), (2, (2, 3, 600)), (3, (1, 2)), (3, (2, 1100))])
def test_equals_the_plain_rule(interpreted, launches, as_close_as_plain, shape, order):
    c = 2.0 * torch.randn(order + 1, *shape, generator=torch.Generator().manual_seed(2))
    as_close_as_plain(_gated, c)
    assert launches == ["_gated_silu"]


@pytest.mark.parametrize("gate", [-60.0, 20.0])
def test_a_saturated_gate_keeps_its_derivatives(interpreted, as_close_as_plain, gate):
    c = torch.randn(4, 1, 8, generator=torch.Generator().manual_seed(3))
    c[0, :, :4] = gate
    as_close_as_plain(_gated, c)


def test_a_fourth_order_and_float64_take_the_plain_rule(interpreted, launches):
    c = torch.randn(5, 2, 8)
    _gated(Series(c))
    _gated(Series(c[:4].double()))
    assert launches == []
