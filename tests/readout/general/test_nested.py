"""Nested forward mode: the general fallback, and the traps it keeps clear of."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import nn

from loopscope.errors import LoopscopeError
from loopscope.readout import chord_curvature
from loopscope.readout.autograd import nested_derivatives


def test_a_scalar_function_agrees_with_mpmath():
    def f(x):
        return torch.exp(torch.sin(x)) * torch.atan(x)

    base, direction = torch.tensor([0.7], dtype=torch.float64), torch.tensor([1.3], dtype=torch.float64)
    found = nested_derivatives(f, base, direction, 4)
    with mpmath.workdps(40):

        def g(t):
            x = mpmath.mpf(0.7) + t * mpmath.mpf(1.3)
            return mpmath.exp(mpmath.sin(x)) * mpmath.atan(x)

        for k, derivative in enumerate(found):
            assert float(derivative) == pytest.approx(float(mpmath.diff(g, 0, k)), rel=1e-12, abs=0.0)


def test_layer_norm_has_the_curvature_that_reverse_mode_finds():
    g = torch.Generator().manual_seed(0)
    norm = nn.LayerNorm(6).double()
    nn.init.normal_(norm.weight, generator=g)
    base, direction = torch.randn(2, 3, 6, generator=g, dtype=torch.float64)
    second = nested_derivatives(lambda x: norm(x).pow(3).sum(), base, direction, 2)[2]
    torch.testing.assert_close(second, chord_curvature(lambda x: norm(x).pow(3).sum(), base, direction))


@pytest.mark.parametrize("norm", [nn.InstanceNorm1d(4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4).eval()])
def test_norms_that_torch_differentiates_wrongly_are_refused(norm):
    x = torch.ones(2, 4, 5, dtype=torch.float64)
    with pytest.raises(LoopscopeError, match="write the normalisation out with mean and rsqrt"):
        nested_derivatives(norm.double(), x, x, 2)


def test_fused_attention_is_left_out_and_comes_back():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).double().eval().requires_grad_(False)
    g = torch.Generator().manual_seed(4)
    base, direction = torch.randn(2, 2, 3, 4, generator=g, dtype=torch.float64)
    before = torch.backends.mha.get_fastpath_enabled()
    second = nested_derivatives(lambda x: layer(x).pow(3).sum(), base, direction, 2)[2]
    assert torch.backends.mha.get_fastpath_enabled() == before
    torch.testing.assert_close(second, chord_curvature(lambda x: layer(x).pow(3).sum(), base, direction))
