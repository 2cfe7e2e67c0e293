"""The RMS norm of series in one pass, against the plain rule."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from loopscope.models.layers.residual import RMSNorm


def _coefficients(order, *shape):
    return torch.randn(order + 1, *shape, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(("order", "shape"), [(1, (3, 26)), (2, (2, 3, 600)), (3, (1, 1)), (3, (2, 1100))])
def test_equals_the_plain_rule(interpreted, launches, as_close_as_plain, shape, order):
    norm = RMSNorm(shape[-1], 1e-6)
    with torch.no_grad():
        norm.weight.copy_(_coefficients(0, shape[-1])[0])

    def normed(x):
        weight = norm.weight.to(x.dtype)
        return functional.rms_norm(x, (shape[-1],), weight, norm.eps)

    as_close_as_plain(normed, _coefficients(order, *shape) + 0.5)
    assert launches == ["_rms_norm"]


def test_without_a_weight(interpreted, launches, as_close_as_plain):
    as_close_as_plain(lambda x: functional.rms_norm(x, (10,), None, 1e-5), _coefficients(3, 4, 10))
    assert launches == ["_rms_norm"]
