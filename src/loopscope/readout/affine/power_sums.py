"""Weighted sums of one vocabulary block at evenly spaced scales, from power sums at a few of them.

With d one entry of the block, u = v − v_d and α_c the centre of some neighbouring scales, the weight of an entry
against d's at α = α_c + δ is w e^{δu}, w = exp(z(0) − z_d(0) + α_c u). About an origin μ close to the mean of u, and
with c = u − μ, the moments at all these scales are series in power sums:

    Σ w e^{δu} c^m = e^{δμ} Σ_n P_{n+m} δⁿ/n!,        P_n = Σ w cⁿ.

Such an interval of scales costs one exponential and some 30 powers however many scales it holds: at 257 scales far
fewer than one multiplication a scale. As P_{i+Ij} = Σ (w cⁱ)(c^{Ij}), a dozen products make the powers and one matrix
product adds them up.

**Error of a sum.** An interval is so narrow that |δ| range(v) ≤ x = `REACH`, and its series stops after N terms with
e^{2x} x^N/N! ≤ ε = 2⁻⁵³. The terms add up to e^{|δc|} at most while their sum is e^{δc} ≥ e^{−|δc|}; the n-th carries
at most (4n + 2m + 5)ε from its power and its coefficient, and Σ n|δc|ⁿ/n! = |δc|e^{|δc|}. To first order an entry adds
to the m-th sum with a relative error of at most

    ε [e^{2|δc|} (4|δc| + 2m + 5) + 4x + 3|α_c u| + 2|z(0) − z_d(0)| + 8],

where what follows the first term is the cost of rounding an exponent, which any method that takes exp z pays. The
first is 1e-13 for an entry at the far end of the range of v and δ at the end of an interval, a few ε for most.

**Error of a moment.** The sums are about o = v_d + μ, and Σ w (v − m)² = Σ w (v − o)² − W (m − o)² loses a factor
E[(v − o)²]/Var[v]. The origin is the displacement of the entry d that is likeliest at the interval's centre, where its
terms vanish exactly, so that a peaked softmax loses nothing; and the mean there if d holds less than a fifth of the
block's mass. Away from the centre by δ the probabilities have changed by e^{±|δ| range(v)} at most, with
|δ| range(v) ≤ `REACH`; the factor is then at most 6 e⁴, and about e² where two entries trade places in it.

Shapes: t tokens, c of them at a time, b vocabulary entries, K scales, k of one interval, G intervals.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.affine.moments import LogMass, Moments

START_ORDER = 4
"""The moments that node 0 always has: a tiny displacement's gains are their Taylor polynomial."""

DOMINANT = 4.0
"""The mass Σ_{a≠d} w_a beyond which moments are taken about the mean and not about v_d."""

REACH = 2.0
"""The largest |δ| range(v) of an interval."""


@dataclass(frozen=True)
class EvenNodes:
    """Scales k/(count − 1), and the `places` among them where moments up to `order` are wanted."""

    count: int
    places: tuple[int, ...]
    order: int

    @property
    def step(self) -> float:
        """The distance of two scales."""
        return 1.0 / (self.count - 1)

    @property
    def everywhere(self) -> bool:
        """Whether moments are wanted at all scales."""
        return self.places == tuple(range(self.count))

    def scales(self, device: torch.device) -> Tensor:
        """All scales, float64 [K]; not to be written to."""
        return _scales(self.count, device)


@functools.lru_cache(maxsize=64)
def _scales(count: int, device: torch.device) -> Tensor:
    """On a device, made there once."""
    return torch.arange(count, dtype=torch.float64, device=device) / (count - 1)


class EvenSums(NamedTuple):
    """A block of the vocabulary: its mass at all K scales, moments at M of them, and at scale 0 up to the fourth."""

    mass: LogMass
    wanted: Moments
    start: Moments


class EvenResult(NamedTuple):
    """Of the whole vocabulary: its mass at all scales, φ', φ'', … at those wanted [order, t, M] and at 0 [n, t]."""

    mass: LogMass
    derivatives: Tensor
    start: Tensor


def moments_about(at: LogMass, mu_tM: Tensor, sums_mtM: Tensor, v_y_t1: Tensor) -> Moments:
    """Moments about the mean from Σ_{a≠d} w (u − μ)^m, m = 1, …; d itself adds (−μ)^m."""
    mass = 1.0 + at.others
    S = [total + (-mu_tM) ** m for m, total in enumerate(sums_mtM, 1)]
    if not S:
        return Moments(*at, torch.zeros_like(mass), (), torch.zeros_like(mass))
    m = S[0] / mass
    central = []
    if len(S) >= 2:
        central.append((S[1] - m * S[0]).clamp(min=0.0))
    if len(S) >= 3:
        central.append(S[2] - 3.0 * m * S[1] + 2.0 * m**2 * S[0])
    if len(S) >= 4:
        central.append(S[3] - 4.0 * m * S[2] + 6.0 * m**2 * S[1] - 3.0 * m**3 * S[0])
    slope = mass * ((v_y_t1 - at.v_d) - mu_tM) - S[0]
    return Moments(*at, mu_tM + m, tuple(central), slope)


_ELEMENTS = 1 << 20  # 8 MiB of float64 for the powers, most of which stay in a core's caches


class Interval(NamedTuple):
    """Scales first … stop − 1, the scale halfway between them, and how many terms their series takes."""

    first: int
    stop: int
    centre: float
    terms: int


def intervals(nodes: EvenNodes, spread: float) -> list[Interval]:
    """The scales in intervals that are narrow enough for a displacement of this range."""
    most = nodes.count if spread == 0.0 else 1 + int(min(2.0 * REACH / (spread * nodes.step), nodes.count))
    number = -(-nodes.count // min(most, nodes.count))
    size = -(-nodes.count // number)
    starts = range(0, nodes.count, size)
    ends = [min(first + size, nodes.count) for first in starts]
    terms = series_terms(0.5 * (size - 1) * nodes.step * spread)
    middles = ((first + stop - 1) / 2 for first, stop in zip(starts, ends, strict=True))
    return [
        Interval(*ends_and_centre, terms)
        for ends_and_centre in zip(starts, ends, (m * nodes.step for m in middles), strict=True)
    ]


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
    layout = intervals(nodes, spread)
    tokens, width = z0_tb.shape
    away = [nodes.scales(z0_tb.device)[interval.first : interval.stop] - interval.centre for interval in layout]
    series = [_coefficients(away_k, interval.terms) for away_k, interval in zip(away, layout, strict=True)]
    sums_mtK = z0_tb.new_empty(START_ORDER + 1, tokens, nodes.count)
    origins_3tG = z0_tb.new_empty(3, tokens, len(layout))
    shape = _Table.of(layout[0].terms + START_ORDER)
    chunk = max(1, min(tokens, _ELEMENTS // (shape.lines * width)))
    space = z0_tb.new_empty(chunk * shape.lines * width)
    for first in range(0, tokens, chunk):
        rows = slice(first, min(first + chunk, tokens))
        for g, interval in enumerate(layout):
            found, origins_3tG[:, rows, g] = _powers(z0_tb[rows], v_tb[rows], interval, shape, space)
            grown_ck = torch.exp(origins_3tG[2, rows, g, None] * away[g])
            for m in range(START_ORDER + 1):
                here_ck = sums_mtK[m, rows, interval.first : interval.stop]
                torch.mul(found[:, m : m + interval.terms] @ series[g], grown_ck, out=here_ck)
    return _finished(sums_mtK, origins_3tG, nodes, layout, v_y_t1)


def _finished(
    sums_mtK: Tensor, origins_3tG: Tensor, nodes: EvenNodes, layout: list[Interval], v_y_t1: Tensor
) -> EvenSums:
    """Sums about each interval's origin turned into moments about each scale's mean."""
    of_scale = [g for g, interval in enumerate(layout) for _ in range(interval.first, interval.stop)]
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


def _powers(z0_cb: Tensor, v_cb: Tensor, interval: Interval, shape: _Table, space: Tensor) -> tuple[Tensor, Tensor]:
    """Σ w cⁿ without the entry d, [c, powers], and z_d, v_d and μ, [3, c]."""
    tokens, width = z0_cb.shape
    rows_cIb = space[: tokens * shape.rows * width].view(tokens, shape.rows, width)
    columns_cJb = space[rows_cIb.numel() :][: tokens * shape.columns * width].view(tokens, shape.columns, width)
    scratch_cb = torch.add(z0_cb, v_cb, alpha=interval.centre)
    d_c1 = scratch_cb.argmax(1, keepdim=True)
    z0_d_c1, v_d_c1 = z0_cb.gather(1, d_c1), v_cb.gather(1, d_c1)
    c_cb = v_cb - v_d_c1
    torch.sub(z0_cb, z0_d_c1, out=scratch_cb).add_(c_cb, alpha=interval.centre)
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
