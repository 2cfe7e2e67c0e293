r"""Softmax moments and gains of affine logits in float64: the mathematics of a path, and the back end for any device.

For logits z(α) = z(0) + αv, p(α) = softmax z(α) and the reference label y (Eq. affine-logit-utility),

    φ(α) = αv_y − log Σ exp z(α) + log Σ exp z(0),
    φ'(α) = v_y − E[v],  φ''(α) = −Var[v],  φ'''(α) = −κ₃[v],  φ''''(α) = −(μ₄[v] − 3 Var[v]²).

**Sums.** Relative to an entry d that is likely at α, with u = v − v_d and w = exp(z(α) − z_d(α)), all follows from
S_n = Σ_{a≠d} w uⁿ, n = 0 … 4: d itself would add 1 to the mass, which is 1 + S_0, and nothing else. Log masses are kept
as z_d(0) + αv_d + log1p(S_0), so a peaked softmax keeps its digits. As d has the largest share of the mass, moments
about v_d lose at most the number of entries that share it, and about ten times their rounding as a rule.

**Neighbouring scales** α_c + δ share d, the likeliest entry at the middle α_c, and one exponential: with power sums
P_n = Σ_{a≠d} w uⁿ at α_c,

    S_m(δ) = Σ_n P_{n+m} δⁿ/n!.

An interval of scales is so narrow that |δu| ≤ x = `REACH`, and the series stops where e^{2x} x^N/N! ≤ 2⁻⁵³. Its terms
add up to e^{|δu|} at most and their sum is e^{−|δu|} at least, so a sum is right to e^{2x}(4x + 2m + 5) ε of its
absolute terms at worst, a few ε for most entries. P_{i+Ij} = Σ (w uⁱ)(u^{Ij}) shares its products.

**Blocks** of the vocabulary are merged by their own leading entries: variances add up from non-negative terms
(`merge`).

**Gains** are differences of log masses taken term by term, right to some 10⁻¹⁵ of these terms. Where the whole
displacement is so small that this would cost digits, φ is its Taylor polynomial at 0.

On a CPU groups of tokens run in threads of their own (`in_parallel`).

Shapes: t tokens, c of them at a time, b vocabulary entries, K scales, n of them together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.affine.endpoint import EndpointDistributions, EndpointSweep
from loopscope.readout.affine.query import Backend, Query, Survey, joined, spacing, taken
from loopscope.readout.affine.sources import blocks
from loopscope.readout.parallel import in_parallel, workers

REACH = 3.0
"""How far the logarithm of a weight against d's may move from the middle of some scales to either end."""

_ELEMENTS = 1 << 18  # of the powers at a time: 2 MiB of float64
_LEAST_TOKENS = 16  # of a thread: fewer are not worth products of their own
_NEGLECTED = 1e-13
_TAYLOR = 4
"""Order of the polynomial that gives the gains of a tiny displacement, also where no derivative is asked for."""


class Moments(NamedTuple):
    """Some of the vocabulary at every scale, [t, K] each, in units of its leading entry's weight.

    `z0_d` and `v_d` are logit and displacement of that entry, `others` is Σ_{a≠d} w; `mean` is the mean of v, less
    v_d; `slope` is Σ w (v_y − v); `central` are Σ w c², Σ w c³, … about the mean.
    """

    z0_d: Tensor
    v_d: Tensor
    others: Tensor
    mean: Tensor
    slope: Tensor
    central: tuple[Tensor, ...]


def from_sums(z0_d: Tensor, v_d: Tensor, sums: Sequence[Tensor], v_y_t1: Tensor) -> Moments:
    """Moments from S_0, S_1, …"""
    mass, zero = 1.0 + sums[0], torch.zeros_like(sums[0])
    if len(sums) == 1:
        return Moments(z0_d, v_d, sums[0], zero, zero, ())
    mean = sums[1] / mass
    central = []
    if len(sums) >= 3:
        central.append((sums[2] - mean * sums[1]).clamp(min=0.0))
    if len(sums) >= 4:
        central.append(sums[3] - 3.0 * mean * sums[2] + 2.0 * mean**2 * sums[1])
    if len(sums) >= 5:
        central.append(sums[4] - 4.0 * mean * sums[3] + 6.0 * mean**2 * sums[2] - 3.0 * mean**3 * sums[1])
    return Moments(z0_d, v_d, sums[0], mean, mass * (v_y_t1 - v_d) - sums[1], tuple(central))


def merge(a: Moments, b: Moments, scales_K: Tensor) -> Moments:
    """Moments of the union of two blocks, in units of the likelier of the two leading entries."""
    gap = (b.z0_d - a.z0_d) + scales_K * (b.v_d - a.v_d)
    b_leads, factor = gap > 0.0, torch.exp(-gap.abs())
    factor_a, factor_b = torch.where(b_leads, factor, 1.0), torch.where(b_leads, 1.0, factor)
    mass_a, mass_b = factor_a * (1.0 + a.others), factor_b * (1.0 + b.others)
    others = torch.where(b_leads, b.others + mass_a, a.others + mass_b)
    share_a, share_b = mass_a / (1.0 + others), mass_b / (1.0 + others)
    delta, pair = (b.v_d - a.v_d) + (b.mean - a.mean), mass_a * share_b
    of_a, of_b = ([factor * m for m in x.central] for x, factor in ((a, factor_a), (b, factor_b)))
    central = []
    if of_a:
        central.append(of_a[0] + of_b[0] + delta**2 * pair)
    if len(of_a) >= 2:
        shift = 3.0 * delta * (share_a * of_b[0] - share_b * of_a[0])
        central.append(of_a[1] + of_b[1] + delta**3 * pair * (share_a - share_b) + shift)
    if len(of_a) >= 3:
        spread = delta**4 * pair * (share_a**2 - share_a * share_b + share_b**2)
        shift = 6.0 * delta**2 * (share_a**2 * of_b[0] + share_b**2 * of_a[0])
        skew = 4.0 * delta * (share_a * of_b[1] - share_b * of_a[1])
        central.append(of_a[2] + of_b[2] + spread + shift + skew)
    return Moments(
        torch.where(b_leads, b.z0_d, a.z0_d),
        torch.where(b_leads, b.v_d, a.v_d),
        others,
        torch.where(b_leads, b.mean - delta * share_a, a.mean + delta * share_b),
        factor_a * a.slope + factor_b * b.slope,
        tuple(central),
    )


def derivatives(moments: Moments) -> list[Tensor]:
    """φ', φ'', … [t, K] from moments of the whole vocabulary, as far as they were taken."""
    mass = 1.0 + moments.others
    central = [m / mass for m in moments.central]
    out = [moments.slope / mass, *(-m for m in central)]
    if len(central) >= 3:
        out[3] = -(central[2] - 3.0 * central[0] ** 2)
    return out


def gains(moments: Moments, v_y_t1: Tensor, spread_t: Tensor, scales_K: Tensor) -> Tensor:
    """φ at all scales, [t, K]; the first scale is 0."""
    direct = (
        scales_K * (v_y_t1 - moments.v_d)
        - (moments.z0_d - moments.z0_d[:, :1])
        - (torch.log1p(moments.others) - torch.log1p(moments.others[:, :1]))
    )
    at_start = [d[:, :1] for d in derivatives(moments)] if moments.central else []
    polynomial = torch.zeros_like(direct)
    for n in range(len(at_start), 0, -1):
        polynomial = scales_K * (at_start[n - 1] / math.factorial(n) + polynomial)
    tiny = scales_K * spread_t.unsqueeze(1) <= _tiny(len(at_start)) if at_start else torch.zeros_like(direct).bool()
    return torch.where(tiny, polynomial, direct)


def _tiny(order: int) -> float:
    """Up to which range of the displacement the Taylor polynomial of this order is taken."""
    return math.pow(_NEGLECTED, 1.0 / (order + 1))


class Interval(NamedTuple):
    """Scales that share an entry d: their places, the scale in the middle, and how many terms their series takes."""

    places: range
    centre: float | Tensor
    terms: int


def intervals(
    scales: Sequence[float | Tensor], step: float | None, spread: float, reach: float = REACH
) -> list[Interval]:
    """Evenly spaced scales together, as far as a displacement of this range allows; others one by one."""
    count = len(scales)
    if step is None:
        return [Interval(range(k, k + 1), scale, 1) for k, scale in enumerate(scales)]
    most = count if spread == 0.0 else 1 + int(min(2.0 * reach / (spread * step), count))
    size = -(-count // -(-count // min(most, count)))
    terms = series_terms(0.5 * (size - 1) * step * spread)
    cut = [range(first, min(first + size, count)) for first in range(0, count, size)]
    return [Interval(places, 0.5 * (places[0] + places[-1]) * step, terms) for places in cut]


def series_terms(reach: float) -> int:
    """How many terms of Σ (δu)ⁿ/n! leave less than 2⁻⁵³ of e^{δu}, for |δu| up to `reach`.

    >>> [series_terms(x) for x in (0.0, 0.01, 0.5, 2.0)]
    [1, 7, 15, 26]
    """
    terms, left = 1, reach
    while left * math.exp(2.0 * reach) > 2.0**-53:
        terms += 1
        left *= reach / terms
    return terms


def series(powers_Gtn: Tensor, layout: list[Interval], step: float, order: int) -> list[Tensor]:
    """S_0, S_1, … up to `order` at all scales, [t, K] each, from P_0, P_1, … of G intervals."""
    if len(layout[0].places) == 1:
        return [powers_Gtn[..., m].T for m in range(order + 1)]
    coefficients_Gns = _coefficients(tuple(layout), step, powers_Gtn.device)
    terms = layout[0].terms
    sums = (powers_Gtn[..., m : m + terms] @ coefficients_Gns for m in range(order + 1))
    return [each.transpose(0, 1).flatten(1)[:, : layout[-1].places.stop] for each in sums]


@functools.lru_cache(maxsize=64)
def _coefficients(layout: tuple[Interval, ...], step: float, device: torch.device) -> Tensor:
    """δⁿ/n! of the scales of each interval, those beyond the end of the last one included, [G, n, s]."""
    size = len(layout[0].places)
    away = [[(each.places.start + s) * step - each.centre for s in range(size)] for each in layout]
    away_Gs = torch.tensor(away, dtype=torch.float64)
    lines = [torch.ones_like(away_Gs)]
    for n in range(1, layout[0].terms):
        lines.append(lines[-1] * away_Gs / n)
    return torch.stack(lines, 1).to(device)


def block_moments(
    z0_tb: Tensor, v_tb: Tensor, v_y_t1: Tensor, layout: list[Interval], step: float | None, order: int
) -> Moments:
    """Moments of one block at all scales."""
    tokens, width = z0_tb.shape
    needed = layout[0].terms + order
    rows = 1 << (math.isqrt(needed - 1).bit_length() if needed > 1 else 0)
    columns = -(-needed // rows)
    chunk = max(1, _ELEMENTS // ((rows + columns) * width))
    powers = z0_tb.new_empty(len(layout), tokens, columns, rows)
    z0_d, v_d = z0_tb.new_empty(2, len(layout), tokens, 1)
    for some in blocks(tokens, chunk):
        z0_cb, v_cb = z0_tb[some], v_tb[some]
        low = z0_tb.new_empty(z0_cb.shape[0], rows, width)
        high = z0_tb.new_ones(z0_cb.shape[0], columns, width)
        for g, interval in enumerate(layout):
            centre = interval.centre[some] if isinstance(interval.centre, Tensor) else interval.centre
            x_cb = z0_cb + centre * v_cb
            d_c1 = torch.argmax(x_cb, dim=1, keepdim=True)
            z0_d[g, some], v_d[g, some] = z0_cb.gather(1, d_c1), v_cb.gather(1, d_c1)
            u_cb = v_cb - v_d[g, some]
            torch.sub(z0_cb, z0_d[g, some], out=x_cb).add_(centre * u_cb)
            torch.exp(x_cb, out=low[:, 0]).scatter_(1, d_c1, 0.0)
            _geometric(high, _geometric(low, u_cb))
            torch.bmm(high, low.transpose(1, 2), out=powers[g, some])
    sums = series(powers.flatten(2), layout, step or 0.0, order)
    return from_sums(at_scales(z0_d[..., 0].T, layout), at_scales(v_d[..., 0].T, layout), sums, v_y_t1)


def at_scales(values_tG: Tensor, layout: list[Interval]) -> Tensor:
    """What intervals have, at each of their scales, [t, K]."""
    spread_tGs = values_tG.unsqueeze(2).expand(-1, -1, len(layout[0].places))
    return spread_tGs.flatten(1)[:, : layout[-1].places.stop]


def _geometric(lines_cnb: Tensor, factor_cb: Tensor) -> Tensor:
    """Fills lines 1, 2, … with line 0 times the factor, its square, …; overwrites the factor with a higher power."""
    count, done = lines_cnb.shape[1], 1
    while done < count:
        more = min(done, count - done)
        torch.mul(lines_cnb[:, :more], factor_cb.unsqueeze(1), out=lines_cnb[:, done : done + more])
        factor_cb *= factor_cb
        done += more
    return factor_cb


@dataclass(frozen=True)
class MomentsBackend(Backend):
    """Any scales on any device."""

    block_tokens: int
    block_vocabulary: int
    name = "moments"

    def not_supported_reasons(self, query: Query) -> list[str]:
        """None: it answers everything."""
        return []

    @torch.no_grad()
    def evaluate(self, query: Query) -> Survey:
        """A block of tokens and vocabulary at a time."""
        tasks = [
            partial(self._some, query, slice(rows.start + part.start, rows.start + part.stop))
            for rows in blocks(query.source.tokens, self.block_tokens)
            for part in _parts(rows, query.source.device)
        ]
        return joined(in_parallel(tasks))

    def _some(self, query: Query, rows: slice, least_order: int = 0) -> Survey:
        source, targets_t = query.source, query.targets_T[rows]
        target = source.target_logits(rows, targets_t)
        own_t1 = None if query.common is not None else query.scales_K[rows]
        scales_K = query.scales_K if own_t1 is None else own_t1
        scales: list[float | Tensor] = [own_t1] if query.common is None else list(query.common)  # type: ignore[list-item]
        shift = int(query.common is None or query.common[0] != 0.0)
        if shift:
            scales = [0.0, *scales]
            scales_K = torch.cat([torch.zeros_like(scales_K[..., :1]), scales_K], -1)
        step = None if query.common is None else spacing(query.common)
        order = max(query.order if query.places else 0, least_order)
        ends = EndpointSweep() if query.distributions else None
        moments: Moments | None = None
        low_t = high_t = target.v[:, 0]
        for columns in blocks(source.vocabulary, self.block_vocabulary):
            z0_tb, v_tb = source.block(rows, columns, targets_t, target)
            # On a CPU torch finds both at once far more slowly than one after the other.
            least_t, most_t = v_tb.amin(1), v_tb.amax(1)
            low_t, high_t = torch.minimum(low_t, least_t), torch.maximum(high_t, most_t)
            layout = intervals(scales, step, float((most_t - least_t).max()))
            block = block_moments(z0_tb, v_tb, target.v, layout, step, order)
            moments = block if moments is None else merge(moments, block, scales_K)
            if ends is not None:
                ends.add(z0_tb, v_tb)
        assert moments is not None
        if order < _TAYLOR and bool((high_t - low_t <= _tiny(_TAYLOR)).any()):
            return self._some(query, rows, _TAYLOR)
        found = None if ends is None else ends.result()
        return answered(query, moments, target.z0, target.v, high_t - low_t, scales_K, shift, found)


def answered(
    query: Query,
    moments: Moments,
    z0_y_t1: Tensor,
    v_y_t1: Tensor,
    spread_t: Tensor,
    scales_K: Tensor,
    shift: int,
    ends: EndpointDistributions | None,
) -> Survey:
    """What follows from moments of the whole vocabulary; the first `shift` scales were not asked for."""
    gains_tK = gains(moments, v_y_t1, spread_t, scales_K)[:, shift:]
    places = [place + shift for place in query.places]
    wanted = [taken(d, places) for d in derivatives(moments)[: query.order]] if query.order and places else []
    empty = gains_tK.new_empty(query.order, gains_tK.shape[0], len(places))
    return Survey.of(
        query,
        gains_tK,
        torch.stack(wanted) if wanted else empty,
        (z0_y_t1 - moments.z0_d[:, :1])[:, 0] - torch.log1p(moments.others[:, 0]),
        spread_t,
        ends,
    )


def _parts(rows: slice, device: torch.device) -> Iterator[slice]:
    """Tokens of each thread."""
    tokens = rows.stop - rows.start
    groups = 1 if device.type == "cuda" else max(1, min(workers(), tokens // _LEAST_TOKENS))
    return blocks(tokens, -(-tokens // groups))
