"""The paper's envelope: sound between nodes, attained by two points, and looser than loopscope's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from loopscope.path import paper_envelope
from loopscope.readout.affine.make import affine_path

CELLS, DENSE = 16, 33
Floats = NDArray[np.float64]


def derivatives(z: Floats, v: Floats, alpha: Floats) -> tuple[Floats, Floats]:
    """Mean over tokens of φ'' and φ''' of logits z + αv, written out: [scales]."""
    logits = z[None] + alpha[:, None, None] * v[None]
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    centred = v - (p * v).sum(-1, keepdims=True)
    return -(p * centred**2).sum(-1).mean(-1), -(p * centred**3).sum(-1).mean(-1)


def envelope_of(z: Floats, v: Floats, cells: int = CELLS):
    nodes = np.arange(cells + 1) / cells
    second, third = derivatives(z, v, nodes)
    spread = v.max(-1) - v.min(-1)
    moments = np.array([[np.mean(spread**power) for power in (2, 3, 4)]])
    return paper_envelope(nodes, second[None], third[None], moments)


@pytest.mark.parametrize("size", [0.1, 3.0, 40.0])
@pytest.mark.parametrize("peak", [0.5, 8.0])
@pytest.mark.parametrize("vocabulary", [2, 3, 50])
def test_bounds_hold_between_the_nodes(size: float, peak: float, vocabulary: int) -> None:
    random = np.random.default_rng(vocabulary)
    for _ in range(5):
        z, v = (random.normal(size=(4, vocabulary)) * scale for scale in (peak, size))
        found = envelope_of(z, v)
        for cell in range(CELLS):
            second, third = derivatives(z, v, np.linspace(cell / CELLS, (cell + 1) / CELLS, DENSE))
            assert (-second).max() <= found.curvature_upper[0, cell]
            assert (-second).min() >= found.curvature_lower[0, cell]
            assert np.abs(third).max() <= found.third[0, cell]


def test_two_points_attain_the_bound_of_the_fourth_derivative() -> None:
    """Two equally likely logits that part at speed R: φ'''' = R⁴/8, so the line that φ''' may follow is its tangent."""
    speed, step = 3.0, 1e-4
    z, v = np.zeros((1, 2)), np.array([[0.0, speed]])
    _, third = derivatives(z, v, np.array([-step, step]))
    assert (third[1] - third[0]) / (2 * step) == pytest.approx(speed**4 / 8, rel=1e-6)


@pytest.mark.parametrize("size", [0.3, 3.0])
def test_it_is_never_tighter_than_loopscopes(size: float) -> None:
    random = np.random.default_rng(3)
    z, v = random.normal(size=(6, 200)) * 2.0, random.normal(size=(6, 200)) * size
    targets = torch.arange(6)
    ours = affine_path(torch.tensor(z), torch.tensor(v), targets).envelope(256)
    moments = ours.range_moments.numpy()[None]
    spread = v.max(-1) - v.min(-1)
    np.testing.assert_allclose(moments[0], [np.mean(spread**power) for power in (2, 3, 4)], rtol=1e-12)
    second, third = (ours.derivatives.stack[order].numpy()[None] for order in (2, 3))
    paper = paper_envelope(ours.nodes.numpy(), second, third, moments)
    slack = 1 + 1e-9
    assert (ours.third.numpy() <= paper.third[0] * slack).all()
    assert (ours.curvature_upper.numpy() <= paper.curvature_upper[0] * slack).all()
    assert (ours.curvature_lower.numpy() * slack >= paper.curvature_lower[0]).all()
    assert float(ours.M) < 0.9 * paper.third.max()
