r"""The same sums as `even_sums` for many scales: from power sums at a few of them.

With d one entry of the block, u = v − v_d and α_c the centre of some neighbouring scales, the weight of an entry
against d's at α = α_c + δ is w e^{δu}, w = exp(z(0) − z_d(0) + α_c u). About an origin μ close to the mean of u, and
with c = u − μ, the moments at all these scales are series in power sums:

    Σ w e^{δu} c^m = e^{δμ} Σ_n P_{n+m} δⁿ/n!,        P_n = Σ w cⁿ.

Such a part of the scales costs one exponential and some 30 powers however many scales it holds: at 257 scales far
fewer than one multiplication a scale. As P_{i+Ij} = Σ (w cⁱ)(c^{Ij}), a dozen products make the powers and one matrix
product adds them up.

**Error of a sum.** A part is so narrow that |δ| range(v) ≤ x = `_REACH`, and its series stops after N terms with
e^{2x} x^N/N! ≤ ε = 2⁻⁵³. The terms add up to e^{|δc|} at most while their sum is e^{δc} ≥ e^{−|δc|}; the n-th carries
at most (4n + 2m + 5)ε from its power and its coefficient, and Σ n|δc|ⁿ/n! = |δc|e^{|δc|}. To first order an entry adds
to the m-th sum with a relative error of at most

    ε [e^{2|δc|} (4|δc| + 2m + 5) + 4x + 3|α_c u| + 2|z(0) − z_d(0)| + 8],

where what follows the first term is the cost of rounding an exponent, which any method that takes exp z pays. The
first is 1e-13 for an entry at the far end of the range of v and δ at the end of a part, a few ε for most. What taking
moments about v_d + μ costs is said in `even_sums`; here |δ| range(v) is half of what it is there.

Shapes: t tokens, c of them at a time, b vocabulary entries, K scales, k of one part, G parts.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.even_sums import DOMINANT, START_ORDER, EvenNodes, EvenSums, LogMass, moments_about
from loopscope.readout.moments import Moments

_REACH = 2.0
_MANY = 64  # scales: `even_sums` takes fewer with less work, unless a single part holds them all
_ELEMENTS = 1 << 20  # 8 MiB of float64 for the powers, most of which stay in a core's caches


class Part(NamedTuple):
    """Scales first … stop − 1, the scale halfway between them, and how many terms their series takes."""

    first: int
    stop: int
    centre: float
    terms: int


def suits(nodes: EvenNodes, spread: float) -> bool:
    """Whether power sums are less work than a multiplication a scale."""
    return nodes.count > _MANY or spread <= 2.0 * _REACH


def parts(nodes: EvenNodes, spread: float) -> list[Part]:
    """The scales in parts that are narrow enough for a displacement of this range."""
    most = nodes.count if spread == 0.0 else 1 + int(min(2.0 * _REACH / (spread * nodes.step), nodes.count))
    number = -(-nodes.count // min(most, nodes.count))
    size = -(-nodes.count // number)
    starts = range(0, nodes.count, size)
    ends = [min(first + size, nodes.count) for first in starts]
    terms = series_terms(0.5 * (size - 1) * nodes.step * spread)
    middles = ((first + stop - 1) / 2 for first, stop in zip(starts, ends, strict=True))
    return [Part(*part, terms) for part in zip(starts, ends, (m * nodes.step for m in middles), strict=True)]


def series_terms(reach: float) -> int:
    """How many terms of Σ (δc)ⁿ/n! leave less than 2⁻⁵³ of e^{δc}, for |δc| up to `reach`.

    >>> [series_terms(x) for x in (0.0, 0.01, 0.5, 2.0)]
    [1, 7, 15, 26]
    """
    terms, left = 1, reach
    while left * math.exp(2.0 * reach) > 2.0**-53:
        terms += 1
        left *= reach / terms
    return terms


def power_sums(z0_tb: Tensor, v_tb: Tensor, v_y_t1: Tensor, spread: float, nodes: EvenNodes) -> EvenSums:
    """The sums of one block; `spread` is the largest range of v over the block's entries of any token."""
    layout = parts(nodes, spread)
    tokens, width = z0_tb.shape
    away = [nodes.scales(z0_tb.device)[part.first : part.stop] - part.centre for part in layout]
    series = [_coefficients(away_k, part.terms) for away_k, part in zip(away, layout, strict=True)]
    sums_mtK = z0_tb.new_empty(START_ORDER + 1, tokens, nodes.count)
    origins_3tG = z0_tb.new_empty(3, tokens, len(layout))
    shape = _Table.of(layout[0].terms + START_ORDER)
    chunk = max(1, min(tokens, _ELEMENTS // (shape.lines * width)))
    space = z0_tb.new_empty(chunk * shape.lines * width)
    for first in range(0, tokens, chunk):
        rows = slice(first, min(first + chunk, tokens))
        for g, part in enumerate(layout):
            found, origins_3tG[:, rows, g] = _powers(z0_tb[rows], v_tb[rows], part, shape, space)
            grown_ck = torch.exp(origins_3tG[2, rows, g, None] * away[g])
            for m in range(START_ORDER + 1):
                here_ck = sums_mtK[m, rows, part.first : part.stop]
                torch.mul(found[:, m : m + part.terms] @ series[g], grown_ck, out=here_ck)
    return _finished(sums_mtK, origins_3tG, nodes, layout, v_y_t1)


def _finished(sums_mtK: Tensor, origins_3tG: Tensor, nodes: EvenNodes, layout: list[Part], v_y_t1: Tensor) -> EvenSums:
    """Sums about each part's origin turned into moments about each scale's mean."""
    of_scale = [g for g, part in enumerate(layout) for _ in range(part.first, part.stop)]
    z0_d_tK, v_d_tK, mu_tK = origins_3tG[:, :, of_scale]
    mass = LogMass(z0_d_tK, v_d_tK, sums_mtK[0])

    def moments(places: list[int], order: int) -> Moments:
        at = LogMass(*(field[:, places] for field in mass))
        return moments_about(at, mu_tK[:, places], sums_mtK[1 : order + 1, :, places], v_y_t1)

    return EvenSums(mass, moments(list(nodes.places), nodes.order), moments([0], START_ORDER))


class _Table(NamedTuple):
    """Powers n = i + rows · j, i < rows, j < columns; `rows` is a power of two."""

    rows: int
    columns: int

    @classmethod
    def of(cls, powers: int) -> _Table:
        rows = 1 << (math.isqrt(powers - 1).bit_length() if powers > 1 else 0)
        return cls(rows, -(-powers // rows))

    @property
    def lines(self) -> int:
        return self.rows + self.columns


def _powers(z0_cb: Tensor, v_cb: Tensor, part: Part, shape: _Table, space: Tensor) -> tuple[Tensor, Tensor]:
    """Σ w cⁿ without the entry d, [c, powers], and z_d, v_d and μ, [3, c]."""
    tokens, width = z0_cb.shape
    rows_cIb = space[: tokens * shape.rows * width].view(tokens, shape.rows, width)
    columns_cJb = space[rows_cIb.numel() :][: tokens * shape.columns * width].view(tokens, shape.columns, width)
    scratch_cb = torch.add(z0_cb, v_cb, alpha=part.centre)
    d_c1 = scratch_cb.argmax(1, keepdim=True)
    z0_d_c1, v_d_c1 = z0_cb.gather(1, d_c1), v_cb.gather(1, d_c1)
    c_cb = v_cb - v_d_c1
    torch.sub(z0_cb, z0_d_c1, out=scratch_cb).add_(c_cb, alpha=part.centre)
    weights_cb = torch.exp(scratch_cb, out=rows_cIb[:, 0])
    weights_cb.scatter_(1, d_c1, 0.0)
    mass_c1 = weights_cb.sum(1, keepdim=True)
    mean_c1 = torch.mul(weights_cb, c_cb, out=scratch_cb).sum(1, keepdim=True) / (1.0 + mass_c1)
    mu_c1 = torch.where(mass_c1 > DOMINANT, mean_c1, 0.0)
    c_cb -= mu_c1
    columns_cJb[:, 0] = 1.0
    _geometric(columns_cJb, _geometric(rows_cIb, c_cb))
    found_cJI = torch.bmm(columns_cJb, rows_cIb.transpose(1, 2))
    return found_cJI.flatten(1), torch.stack([z0_d_c1[:, 0], v_d_c1[:, 0], mu_c1[:, 0]])


def _geometric(lines_cnb: Tensor, factor_cb: Tensor) -> Tensor:
    """Fills lines 1, 2, … with line 0 times the factor, its square, …; overwrites the factor with a higher power."""
    count, done = lines_cnb.shape[1], 1
    while done < count:
        more = min(done, count - done)
        torch.mul(lines_cnb[:, :more], factor_cb.unsqueeze(1), out=lines_cnb[:, done : done + more])
        factor_cb *= factor_cb
        done += more
    return factor_cb


def _coefficients(away_k: Tensor, terms: int) -> Tensor:
    """δⁿ/n!, [terms, k]."""
    lines = [torch.ones_like(away_k)]
    for n in range(1, terms):
        lines.append(lines[-1] * away_k / n)
    return torch.stack(lines)
