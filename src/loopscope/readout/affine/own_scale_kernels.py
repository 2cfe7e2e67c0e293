"""φ and φ' of every token at a scale of its own on a GPU, from stored float64 logits: what a search for roots asks for.

A search asks for φ and φ' some forty times, each time at other scales. `own_scale_kernel` reads both logits of a token
once and takes everything from them in registers. Each lane adds up the entries that it meets in units of the likeliest
one so far, and the lanes are put together at the end; so the sums are those of `moments.block_sums`, and what follows
from them is computed by the same code (`gain_from_sums`, `derivatives_from_moments`).

The gain is −log1p(Σ p_a(0) expm1(x_a)) with x_a = α(v_a − v_y). For |x| ≤ 1 expm1 is its series to the 20th power,
whose first neglected term is below 2⁻⁵³ of it. Entries with |x| > 1 are read off the weights at α instead.

Shapes: T tokens, V vocabulary entries.
"""

# mypy: disable-error-code="assignment"

from __future__ import annotations

import functools

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, tl
from loopscope.readout.affine.moments import GainSums, Moments, derivatives_from_moments, gain_from_sums

TERMS = 20
_LANES, _WARPS, _FIELDS = 1024, 4, 8


def derivatives_at_own(z0_TV: Tensor, v_TV: Tensor, targets_T: Tensor, scales_T: Tensor, order: int) -> Tensor:
    """φ and φ' (up to `order` ≤ 1) of every token at its own scale, [order+1, T].

    A token whose scale is 0 is not read: its φ is 0, and so is what stands for its φ'.
    """
    tokens, entries = z0_TV.shape
    v_y_T1 = v_TV.gather(1, targets_T.unsqueeze(1))
    out_8T = z0_TV.new_zeros(_FIELDS, tokens)
    launch(
        own_scale_kernel,
        (tokens,),
        z0_TV,
        z0_TV,
        v_TV,
        v_y_T1,
        scales_T,
        _inverses(z0_TV.device),
        out_8T,
        tokens,
        entries,
        z0_TV.stride(0),
        v_TV.stride(0),
        warps=_WARPS if z0_TV.is_cuda else 1,
        fusion=True,
        LANES=_LANES if z0_TV.is_cuda else 16,
        TERMS=TERMS,
    )
    z0_d, v_d, others, slope, big, z0_e, others0, small = out_8T
    moments = Moments(z0_d[:, None], v_d[:, None], others[:, None], torch.zeros_like(v_y_T1), (), slope[:, None])
    sums = GainSums(z0_e, others0, small[:, None], big[:, None])
    gain_T1 = gain_from_sums(moments, sums, v_y_T1, scales_T[:, None])
    return torch.stack([gain_T1, *derivatives_from_moments(moments)[:order]])[..., 0]


@functools.cache
def _inverses(device: torch.device) -> Tensor:
    return 1.0 / torch.arange(1, TERMS + 1, dtype=torch.float64, device=device)


@jit
def own_scale_kernel(
    z0: Value,
    v: Value,
    v_y: Value,
    scales: Value,
    inverses: Value,
    out: Value,
    tokens: Value,
    entries: Value,
    z0_stride: Value,
    v_stride: Value,
    LANES: constexpr,
    TERMS: constexpr,
) -> None:
    """One token's sums over the whole vocabulary at its scale and at 0."""
    token = tl.program_id(0)
    alpha = tl.load(scales + token)
    if alpha > 0.0:
        target = tl.load(v_y + token)
        z0 += token.to(tl.int64) * z0_stride
        v += token.to(tl.int64) * v_stride
        lane = tl.arange(0, LANES)
        none = tl.zeros([LANES], dtype=tl.float64)
        # The likeliest entry of each lane at α and at 0, what the others weigh against it, and the weighted sums.
        z_d, v_d, others, slope, big = none - 1e300, none, none, none, none
        z_e, others_e, small = none - 1e300, none, none
        for start in range(0, entries, LANES):
            at = start + lane
            live = at < entries
            z = tl.load(z0 + at, mask=live, other=-float("inf"))
            d = tl.load(v + at, mask=live, other=0.0)
            away = d - target
            x = alpha * away
            far = tl.abs(x) > 1.0
            gap = (z - z_d) + alpha * (d - v_d)
            leads = gap > 0.0
            factor = tl.exp(-tl.abs(gap))
            old = tl.where(leads, factor, 1.0)
            new = tl.where(leads, 1.0, factor)
            others = tl.where(leads, factor * (1.0 + others), others + factor)
            slope = old * slope - new * away
            big = old * big + tl.where(far, new, 0.0)
            z_d = tl.where(leads, z, z_d)
            v_d = tl.where(leads, d, v_d)

            gap = z - z_e
            leads = gap > 0.0
            factor = tl.exp(-tl.abs(gap))
            old = tl.where(leads, factor, 1.0)
            new = tl.where(leads, 1.0, factor)
            others_e = tl.where(leads, factor * (1.0 + others_e), others_e + factor)
            z_e = tl.where(leads, z, z_e)
            near = tl.where(far, 0.0, x)
            series = none + 1.0
            for term in tl.static_range(TERMS - 1):
                series = 1.0 + near * tl.load(inverses + TERMS - 1 - term) * series
            small = old * small + new * tl.where(far, -1.0, near * series)

        # The lanes together. A lane that met no entry weighs nothing: its factor is exp(−1e300).
        key = z_d + alpha * v_d
        best = tl.min(tl.where(key == tl.max(key, 0), lane, LANES), 0)
        z_best = tl.sum(tl.where(lane == best, z_d, 0.0), 0)
        v_best = tl.sum(tl.where(lane == best, v_d, 0.0), 0)
        factor = tl.where(lane == best, 1.0, tl.exp((z_d - z_best) + alpha * (v_d - v_best)))
        out += token
        tl.store(out, z_best)
        tl.store(out + tokens, v_best)
        tl.store(out + 2 * tokens, tl.sum(tl.where(lane == best, others, factor * (1.0 + others)), 0))
        tl.store(out + 3 * tokens, tl.sum(factor * slope, 0))
        tl.store(out + 4 * tokens, tl.sum(factor * big, 0))
        best = tl.min(tl.where(z_e == tl.max(z_e, 0), lane, LANES), 0)
        e_best = tl.sum(tl.where(lane == best, z_e, 0.0), 0)
        factor = tl.where(lane == best, 1.0, tl.exp(z_e - e_best))
        tl.store(out + 5 * tokens, e_best)
        tl.store(out + 6 * tokens, tl.sum(tl.where(lane == best, others_e, factor * (1.0 + others_e)), 0))
        tl.store(out + 7 * tokens, tl.sum(factor * small, 0))
