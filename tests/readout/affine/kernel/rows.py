"""Rows of FP32 logits that try to break a reduction, and what the kernels make of them."""

from __future__ import annotations

import torch
from torch import Tensor

from geometry import by_name
from loopscope.readout import Survey, affine_path
from loopscope.readout.affine.kernel import Plan
from loopscope.readout.affine.query import Query, StoredLogits, grid, places_on
from loopscope.readout.affine.reduction import LOWEST

AT = (0.0, 0.25, 0.5, 0.75, 1.0)


def hard_rows(vocabulary: int, device: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Logits of both states by name, [vocabulary] each; label 5."""
    g = torch.Generator().manual_seed(vocabulary)
    z = 3.0 * torch.randn(vocabulary, generator=g)
    noise = torch.randn(vocabulary, generator=g)
    x = torch.linspace(-1.0, 1.0, vocabulary - 1)
    rows = {name: (z.clone(), z + size * noise) for name, size in (("small", 1e-6), ("plain", 1.0), ("large", 1e3))}
    rows["none"] = z, z.clone()
    rows["one-huge"] = z.clone(), z + noise
    rows["one-huge"][0][7], rows["one-huge"][1][7] = 1000.0, -2000.0
    for name, mask in (("masked", -torch.inf), ("mask-bias", -3.0e38)):
        rows[name] = z.clone(), z + noise
        for row in rows[name]:
            row[::3] = mask
    rows["equal-maxima"] = z.clone(), z + noise
    for row in rows["equal-maxima"]:
        row[3] = row[9] = 50.0
    rows["peaked-to-flat"] = z.clone(), 0.1 * noise
    rows["peaked-to-flat"][0][11] = 60.0
    rows["flat-to-peaked"] = 0.1 * noise, z.clone()
    rows["flat-to-peaked"][1][5] = 60.0
    first, second = torch.tensor([40.0]), torch.tensor([15.0])
    mass_grows = torch.cat([first, 29.5 + x / 2]), torch.cat([second, 39.5 + torch.roll(x, vocabulary // 3) / 2])
    rows["mass-grows"] = mass_grows
    rows["from-nothing"] = z.clone(), z + noise
    rows["from-nothing"][0][5], rows["from-nothing"][1][5] = -5000.0, 3000.0
    return {name: (z0.to(device), z1.to(device)) for name, (z0, z1) in rows.items()}


def reduced(z0: Tensor, z1: Tensor, targets: Tensor, scales=None, places=None, order: int = 2) -> Survey:
    """What the FP32 kernels make of logits [tokens, vocabulary]."""
    scales = grid(21) if scales is None else scales
    places = places_on(21, AT) if places is None else places
    source = StoredLogits(z0.nan_to_num(0.0, 0.0, 0.0), z1.nan_to_num(0.0, 0.0, 0.0))
    query = Query(source, targets, scales, places, order, distributions=True)
    plan, tokens = Plan(query), z0.shape[0]
    out = torch.full((plan.slots, 1, tokens), torch.nan, dtype=torch.float64, device=z0.device)
    plan.reduce(torch.stack([z0, z1]).clamp(min=LOWEST), targets, out, slice(0, tokens))
    return Survey.of(query, plan.answer(query, out[:, 0]))


def exact(z0: Tensor, z1: Tensor, targets: Tensor, order: int = 2) -> Survey:
    """The reference in FP64."""
    z0, z1 = (z.double().clamp(min=LOWEST) for z in (z0, z1))
    return affine_path(z0, z1 - z0, targets, impl="reference", block_tokens=1).per_token().survey(21, AT, order)


def check(z0: Tensor, z1: Tensor, targets: Tensor, name: str = "") -> None:
    """Errors are those of FP32: relative to logits and displacements."""
    found, true = (by_name(f(z0, z1, targets)) for f in (reduced, exact))
    low, high = (torch.minimum(z0, z1), torch.maximum(z0, z1))
    low = torch.where(low <= LOWEST, high, low)
    size = 1.0 + (high.clamp(min=-1e4).amax(1) - low.clamp(min=-1e4).amin(1)).double().cpu()
    for quantity, values in found.items():
        assert values.isfinite().all(), (name, quantity)
        error = (values - true[quantity]).abs().reshape(size.shape[0], -1).amax(1).cpu()
        allowed = 1e-6 * (size**2 if quantity == "curvature" else size)
        assert (error <= allowed).all(), (name, quantity, error, allowed)
