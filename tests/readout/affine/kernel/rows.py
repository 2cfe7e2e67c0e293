"""Rows of FP32 logits that try to break a reduction, and what the kernels make of them."""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.readout import Survey, affine_path
from loopscope.readout.affine.kernel import Plan, empty_logits
from loopscope.readout.affine.query import Query, StoredLogits, grid, places_on

AT = (0.0, 0.25, 0.5, 0.75, 1.0)
LOWEST = -1.0e9


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
    plan, tokens = Plan.of(query), z0.shape[0]
    out = torch.full((plan.slots, 1, tokens), torch.nan, dtype=torch.float64, device=z0.device)
    shares = torch.zeros(2, device=z0.device)
    logits = empty_logits(2 * tokens, z0.shape[1], z0.device).unflatten(0, (2, tokens))
    logits[0], logits[1] = z0, z1
    plan.reduce(logits, None, targets, shares, out, slice(0, tokens))
    return plan.answer(query, out[:, 0])


def exact(z0: Tensor, z1: Tensor, targets: Tensor, order: int = 2) -> Survey:
    """The reference in FP64."""
    z0, z1 = (z.double().clamp(min=LOWEST) for z in (z0, z1))
    return affine_path(z0, z1 - z0, targets, impl="reference", block_tokens=1).per_token().survey(21, AT, order)


def quantities(found: Survey) -> dict[str, Tensor]:
    """By name, tokens first."""
    ends = found.distributions
    return {
        "gains": found.gains,
        "slope": found.derivatives[1],
        "curvature": found.derivatives[2],
        "initial": found.initial,
        "divergence": ends.divergence,
        "reverse_divergence": ends.reverse_divergence,
        "initial_entropy": ends.initial_entropy,
        "final_entropy": ends.final_entropy,
        "entropy_change": ends.entropy_change,
    }


def plain(z0: Tensor, z1: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """What one would write down first: log-softmax and moments of float32 logits."""
    v, y = z1 - z0, targets[:, None]
    along = torch.stack([torch.log_softmax(z0 + k / 20 * v, -1).gather(1, y)[:, 0] for k in range(21)], 1)
    slope, curvature = [], []
    for alpha in AT:
        p = torch.softmax(z0 + alpha * v, -1)
        mean = (p * v).sum(1, keepdim=True)
        slope.append((v.gather(1, y) - mean)[:, 0])
        curvature.append(-(p * (v - mean) ** 2).sum(1))
    lp, lq = torch.log_softmax(z0, -1), torch.log_softmax(z1, -1)
    h0, h1 = -(lp.exp() * lp).sum(1), -(lq.exp() * lq).sum(1)
    return {
        "gains": along - along[:, :1],
        "slope": torch.stack(slope, 1),
        "curvature": torch.stack(curvature, 1),
        "initial": along[:, 0],
        "divergence": (lp.exp() * (lp - lq)).sum(1),
        "reverse_divergence": (lq.exp() * (lq - lp)).sum(1),
        "initial_entropy": h0,
        "final_entropy": h1,
        "entropy_change": h1 - h0,
    }


def check(z0: Tensor, z1: Tensor, targets: Tensor, name: str = "") -> None:
    """Errors are those of FP32: relative to logits and displacements."""
    found, true = (quantities(f(z0, z1, targets)) for f in (reduced, exact))
    low, high = (torch.minimum(z0, z1), torch.maximum(z0, z1))
    low = torch.where(low <= LOWEST, high, low)
    size = 1.0 + (high.clamp(min=-1e4).amax(1) - low.clamp(min=-1e4).amin(1)).double().cpu()
    for quantity, values in found.items():
        assert values.isfinite().all(), (name, quantity)
        error = (values - true[quantity]).abs().reshape(size.shape[0], -1).amax(1).cpu()
        allowed = 1e-6 * (size**2 if quantity == "curvature" else size)
        assert (error <= allowed).all(), (name, quantity, error, allowed)
