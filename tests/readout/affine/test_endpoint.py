"""ΔU = A − C with C from endpoint distributions alone; divergences and entropies against Arb."""

from __future__ import annotations

import torch

from loopscope.readout import affine_path

NAMES = ("divergence", "reverse_divergence", "initial_entropy", "final_entropy", "entropy_change")


def test_divergences_and_entropies_agree_with_arb_and_the_decomposition_closes(affine_case, exact_ends):
    _, z0, v, y = affine_case
    exact = exact_ends(z0, v)
    path = affine_path(z0, v, [y])
    found = path.distributions
    for name in NAMES:
        relative, to_scale = exact.error(name, float(getattr(found, name)))
        assert to_scale < 1e-12, name
        if name != "entropy_change":
            assert relative < 1e-12, name
    assert float(path.divergence) >= 0.0
    scale = float(path.slope.abs() + path.divergence + path.gain.abs())
    residual = float(path.gain - (path.slope - path.divergence))
    assert abs(residual) <= 1e-13 * max(scale, 1e-300) + 1e-13 * float(v.abs().max())


def test_a_vocabulary_of_fifty_thousand(exact_ends):
    g = torch.Generator().manual_seed(4)
    z0 = 3.0 * torch.randn(50_000, generator=g, dtype=torch.float64)
    v = 1e-8 * torch.randn(50_000, generator=g, dtype=torch.float64)
    exact = exact_ends(z0, v)
    found = affine_path(z0, v, [5]).distributions
    for name in NAMES:
        assert exact.error(name, float(getattr(found, name)))[0] < 1e-12, name


def test_a_displacement_of_a_hundred_thousand_keeps_its_digits(exact_ends):
    # One entry takes all the mass; KL(q‖p) = log 30 is what is left of two numbers of size 1e5.
    v = 1e5 * torch.randn(30, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    z0 = torch.zeros(30, dtype=torch.float64)
    exact = exact_ends(z0, v)
    found = affine_path(z0, v, [5]).distributions
    for name in NAMES:
        assert exact.error(name, float(getattr(found, name)))[1] < 1e-13, name


def test_rows_of_every_range_in_one_block(exact_ends):
    # Each range has its own way through a block: a series, a difference, and the careful one.
    g = torch.Generator().manual_seed(11)
    z0 = 3.0 * torch.randn(9, 50, generator=g, dtype=torch.float64)
    z0[::2, 3] += 40.0
    sizes = torch.tensor([1e-9, 20.0, 0.01, 1.0, 300.0, 0.02, 1e-4, 5.0, 0.0], dtype=torch.float64)
    v = sizes.unsqueeze(1) * torch.randn(9, 50, generator=g, dtype=torch.float64)
    found = affine_path(z0, v, [0] * 9).per_token().distributions
    for token in range(9):
        exact = exact_ends(z0[token], v[token])
        for name in NAMES:
            relative, to_scale = exact.error(name, float(getattr(found, name)[token]))
            assert to_scale < 1e-12, (name, token)
            assert relative < 1e-12 or name == "entropy_change", (name, token)
