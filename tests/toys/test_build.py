"""Muon against the singular value decomposition and its own update rule."""

import torch
from torch import nn

from loopscope.toys.build import Muon, orthogonal


def test_singular_values_end_near_one():
    generator = torch.Generator().manual_seed(0)
    for rows, columns in ((16, 16), (48, 16), (16, 48)):
        given = torch.randn(3, rows, columns, generator=generator)
        values = torch.linalg.svdvals(orthogonal(given))
        assert values.min() > 0.3
        assert values.max() < 1.3


def test_singular_vectors_are_kept():
    """Close to U Vᵀ: the inner product with it is nearly that of an orthogonal matrix with itself."""
    given = torch.randn(1, 12, 20, generator=torch.Generator().manual_seed(1))
    left, _, right = torch.linalg.svd(given[0], full_matrices=False)
    exact = left @ right
    found = orthogonal(given)[0]
    assert (found * exact).sum() / (found.norm() * exact.norm()) > 0.97


def test_stacked_parts_are_orthogonalised_apart():
    generator = torch.Generator().manual_seed(2)
    start, gradient = torch.zeros(24, 8), torch.randn(24, 8, generator=generator)
    together = nn.Parameter(start.clone())
    together.grad = gradient.clone()
    Muon([(together, 3)], lr=0.1).step()
    for part in range(3):
        alone = nn.Parameter(start[:8].clone())
        alone.grad = gradient[8 * part : 8 * part + 8].clone()
        Muon([(alone, 1)], lr=0.1).step()
        torch.testing.assert_close(together.data[8 * part : 8 * part + 8], alone.data)


def test_weight_decay_and_momentum():
    weight = nn.Parameter(torch.eye(4))
    optimiser = Muon([(weight, 1)], lr=0.1, momentum=0.9, weight_decay=0.5)
    weight.grad = torch.zeros(4, 4)
    optimiser.step()
    torch.testing.assert_close(weight.data, torch.eye(4) * (1 - 0.1 * 0.5))
    weight.grad = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    optimiser.step()
    torch.testing.assert_close(optimiser.state[weight]["momentum"], weight.grad)
