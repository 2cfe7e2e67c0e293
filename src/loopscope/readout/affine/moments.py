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

**Gains** are differences of log masses taken term by term, right to some 10⁻¹⁵ of these terms. Where the whole
displacement is so small that this would cost digits, φ is its Taylor polynomial at 0.

On a CPU groups of tokens run in threads of their own (`in_parallel`).

Shapes: t tokens, c of them at a time, V vocabulary entries, b of them, K scales in G intervals.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.affine.query import (
    Backend,
    Query,
    Survey,
    endpoint_distributions,
    joined,
    scales_on,
    spacing,
    taken,
)
from loopscope.readout.affine.sources import LogitBlock, blocks, in_parallel, workers

REACH = 3.0
"""How far the logarithm of a weight against d's may move from the middle of some scales to either end."""

ORDER = 4
"""Highest derivative, and of the polynomial that gives the gains of a tiny displacement."""

_ENTRIES = 1 << 22  # of a block of logits: 32 MiB
_ELEMENTS, _WIDTH = 1 << 18, 1 << 14  # of the powers at a time: 2 MiB of float64; of a row
_LEAST_TOKENS = 16  # of a thread
_TINY = 1e-13 ** (1.0 / (ORDER + 1))
"""Up to which range of the displacement the Taylor polynomial is taken: what it neglects is 1e-13."""


class Sums(NamedTuple):
    """Some tokens at every scale, [t, K] each: logit and displacement of the entry d, and S_0 … S_4 without it."""

    z0_d: Tensor
    v_d: Tensor
    powers: tuple[Tensor, ...]


def derivatives(sums: Sums, v_y_t1: Tensor) -> list[Tensor]:
    """The first four, [t, K] each, from moments about d."""
    mass = 1.0 + sums.powers[0]
    mean, second, third, fourth = (power / mass for power in sums.powers[1:])
    variance = (second - mean * mean).clamp(min=0.0)
    skewed = third - 3.0 * mean * second + 2.0 * mean**3
    peaked = fourth - 4.0 * mean * third + 6.0 * mean**2 * second - 3.0 * mean**4
    return [(v_y_t1 - sums.v_d) - mean, -variance, -skewed, 3.0 * variance**2 - peaked]


def gains(sums: Sums, at_start: Sequence[Tensor], v_y_t1: Tensor, spread_t: Tensor, scales_K: Tensor) -> Tensor:
    """φ at all scales, [t, K], of which the first is 0; `at_start` are the derivatives there, [t, 1] each."""
    log_mass = torch.log1p(sums.powers[0])
    direct = scales_K * (v_y_t1 - sums.v_d) - (sums.z0_d - sums.z0_d[:, :1]) - (log_mass - log_mass[:, :1])
    polynomial = torch.zeros_like(direct)
    for n in range(ORDER, 0, -1):
        polynomial = scales_K * (at_start[n - 1] / math.factorial(n) + polynomial)
    return torch.where(scales_K * spread_t.unsqueeze(1) <= _TINY, polynomial, direct)


class Interval(NamedTuple):
    """Scales that share an entry d: their places, the scale in the middle, and how many terms their series takes."""

    places: range
    centre: float
    terms: int


def intervals(count: int, step: float, spread: float, reach: float = REACH) -> list[Interval]:
    """`count` evenly spaced scales, as many together as a displacement of this range allows."""
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


def series(powers_Gtn: Tensor, layout: list[Interval], step: float) -> list[Tensor]:
    """S_0 … S_4 at all scales, [t, K] each, from P_0, P_1, … of G intervals."""
    coefficients_Gns, terms = _coefficients(tuple(layout), step, powers_Gtn.device), layout[0].terms
    found = (powers_Gtn[..., m : m + terms] @ coefficients_Gns for m in range(ORDER + 1))
    return [each.transpose(0, 1).flatten(1)[:, : layout[-1].places.stop] for each in found]


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


def _at_scales(values_tG: Tensor, layout: list[Interval]) -> Tensor:
    """What intervals have, at each of their scales, [t, K]."""
    spread_tGs = values_tG.unsqueeze(2).expand(-1, -1, len(layout[0].places))
    return spread_tGs.flatten(1)[:, : layout[-1].places.stop]


def power_sums(z0_tV: Tensor, v_tV: Tensor, centres: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """The likeliest entry d at each centre, [t, G], and P_n = Σ_{a≠d} w uⁿ, [terms, t, G]; centres: [G] or [t, G]."""
    (tokens, vocabulary), count = z0_tV.shape, int(centres.shape[-1])
    rows = 1 << (math.isqrt(terms - 1).bit_length() if terms > 1 else 0)
    columns, width = -(-terms // rows), min(vocabulary, _WIDTH)
    entry = torch.empty(tokens, count, dtype=torch.int64, device=z0_tV.device)
    powers = z0_tV.new_zeros(count, tokens, columns, rows)
    for some in blocks(tokens, max(1, _ELEMENTS // ((rows + columns) * width))):
        z0_cV, v_cV = z0_tV[some], v_tV[some]
        low = z0_tV.new_empty(z0_cV.shape[0], rows, width)
        high = z0_tV.new_ones(z0_cV.shape[0], columns, width)
        for g in range(count):
            centre = centres[g] if centres.ndim == 1 else centres[some, g : g + 1]
            d_c1 = torch.argmax(z0_cV + centre * v_cV, dim=1, keepdim=True)
            u_cV = v_cV - v_cV.gather(1, d_c1)
            x_cV = (z0_cV - z0_cV.gather(1, d_c1)) + centre * u_cV
            x_cV.scatter_(1, d_c1, -math.inf)
            entry[some, g : g + 1] = d_c1
            for part in blocks(vocabulary, width):
                here = slice(min(width, vocabulary - part.start))
                torch.exp(x_cV[:, part], out=low[:, 0, here])
                _geometric(high[..., here], _geometric(low[..., here], u_cV[:, part]))
                powers[g, some] += torch.bmm(high[..., here], low[..., here].transpose(1, 2))
    return entry, powers.flatten(2)[..., :terms].permute(2, 1, 0)


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
    """Any scales on any device, some tokens at a time."""

    block_tokens: int | None = None
    name = "moments"
    reach = REACH

    def not_supported_reasons(self, query: Query) -> list[str]:
        """None: it answers everything."""
        return []

    @torch.no_grad()
    def evaluate(self, query: Query) -> Survey:
        """All logits of some tokens, then on a CPU groups of these side by side."""
        source, found = query.source, []
        for rows in blocks(source.tokens, self.tokens_at_a_time(query)):
            here = query.some(rows)
            logits = source.block(rows, here.targets_T)
            tokens = int(logits.z0.shape[0])
            groups = 1 if source.device.type == "cuda" else max(1, min(workers(), tokens // _LEAST_TOKENS))
            found += in_parallel(
                [
                    partial(self._answer, here.some(part), LogitBlock(*(each[part] for each in logits)))
                    for part in blocks(tokens, -(-tokens // groups))
                ]
            )
        return joined(found)

    def tokens_at_a_time(self, query: Query) -> int:
        """As many as fit into a block of memory."""
        return self.block_tokens or max(1, _ENTRIES // query.source.vocabulary)

    def _answer(self, query: Query, logits: LogitBlock) -> Survey:
        """The answer of some tokens, from their logits."""
        (z0_tV, v_tV), y_t1 = logits, query.targets_T.unsqueeze(1)
        z0_y_t1, v_y_t1 = z0_tV.gather(1, y_t1), v_tV.gather(1, y_t1)
        spread_t = self.spread(query, logits)
        scales_K, shift = query.scales_K, int(query.common is None or query.common[0] != 0.0)
        if shift:
            scales_K = torch.cat([torch.zeros_like(scales_K[..., :1]), scales_K], -1)
        sums = self._sums(query, logits, scales_K, spread_t)
        at_all = derivatives(sums, v_y_t1)
        gains_tK = gains(sums, [each[:, :1] for each in at_all], v_y_t1, spread_t, scales_K)
        places = [place + shift for place in query.places]
        return Survey.of(
            query,
            gains_tK[:, shift:],
            torch.stack([taken(each, places) for each in at_all])[: query.order],
            (z0_y_t1 - sums.z0_d[:, :1])[:, 0] - torch.log1p(sums.powers[0][:, 0]),
            spread_t,
            endpoint_distributions(z0_tV, v_tV) if query.distributions else None,
        )

    def spread(self, query: Query, logits: LogitBlock) -> Tensor:
        """The range of each token's displacement."""
        return logits.v.amax(1) - logits.v.amin(1)

    def _sums(self, query: Query, logits: LogitBlock, scales_K: Tensor, spread_t: Tensor) -> Sums:
        """Sums at every scale: evenly spaced ones share power sums where this is less work."""
        step = None if query.common is None else spacing(query.common)
        if step is not None:
            layout = intervals(int(scales_K.shape[-1]), step, float(spread_t.max()), self.reach)
            if len(layout) < scales_K.shape[-1]:
                centres = scales_on(tuple(each.centre for each in layout), scales_K.device)
                entry, powers = self.power_sums(logits, centres, layout[0].terms + ORDER)
                z0_d, v_d = (_at_scales(each.gather(1, entry), layout) for each in logits)
                return Sums(z0_d, v_d, tuple(series(powers.permute(2, 1, 0), layout, step)))
        entry, powers = self.power_sums(logits, scales_K, ORDER + 1)
        return Sums(logits.z0.gather(1, entry), logits.v.gather(1, entry), powers.unbind())

    def power_sums(self, logits: LogitBlock, centres: Tensor, terms: int) -> tuple[Tensor, Tensor]:
        """`power_sums` of this back end."""
        return power_sums(*logits, centres, terms)
