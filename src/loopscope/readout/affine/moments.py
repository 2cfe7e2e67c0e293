r"""Softmax moments and gains of affine logits in float64: the mathematics of a path, and the back end for any device.

For logits z(α) = z(0) + αv, p(α) = softmax z(α) and the reference label y (Eq. affine-logit-utility),

    φ(α) = αv_y − log Σ exp z(α) + log Σ exp z(0),
    φ'(α) = v_y − E[v],  φ''(α) = −Var[v],  φ'''(α) = −κ₃[v],  φ''''(α) = −(μ₄[v] − 3 Var[v]²).

**Sums.** Relative to an entry d that is likely at α, with u = v − v_d and w = exp(z(α) − z_d(α)), all follows from
S_n = Σ_{a≠d} w uⁿ, n = 0 … 4: d itself would add 1 to the mass, which is 1 + S_0, and nothing else. Log masses are kept
as z_d(0) + αv_d + log1p(S_0), so a peaked softmax keeps its digits. As d has the largest share of the mass, moments
about v_d lose at most the number of entries that share it, and about ten times their rounding as a rule.

**Neighbouring scales** α_c + δ share d, the likeliest entry at their middle α_c, and one exponential: with power sums
P_n = Σ_{a≠d} w uⁿ at α_c,

    S_m(δ) = Σ_n P_{n+m} δⁿ/n!.

So few of them share it that |δu| ≤ x = `REACH`, and the series stops where e^{2x} x^N/N! ≤ 2⁻⁵³. Its terms
add up to e^{|δu|} at most and their sum is e^{−|δu|} at least, so a sum is right to e^{2x}(4x + 2m + 5) ε of its
absolute terms at worst, a few ε for most entries. P_{i+Ij} = Σ (w uⁱ)(u^{Ij}) shares its products.

**Gains** are differences of log masses taken term by term, right to some 10⁻¹⁵ of these terms. Where the whole
displacement is so small that this would cost digits, φ is its Taylor polynomial at 0.

On a CPU groups of tokens run in threads of their own (`in_parallel`).

Shapes: t tokens, c of them at a time, V vocabulary entries, b of them, K scales, G groups of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.readout.affine.query import Backend, LogitBlock, Query, scales_on, spacing
from loopscope.readout.blocks import blocks, in_parallel, workers

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


def shared_size(count: int, step: float, spread: float, reach: float = REACH) -> int:
    """How many of `count` evenly spaced scales share an entry d: those that a displacement of this range allows.

    >>> shared_size(21, 0.05, 100.0), shared_size(21, 0.05, 10.0), shared_size(21, 0.05, 0.0)
    (2, 11, 21)
    """
    most = count if spread == 0.0 else 1 + int(min(2.0 * reach / (spread * step), count))
    return -(-count // -(-count // min(most, count)))


def series(powers_ntG: Tensor, terms: int, size: int, step: float) -> list[Tensor]:
    """S_0 … S_4 at all scales, [t, G · size] each, from P_0, P_1, … at the middles of G times `size` scales."""
    n_n1 = torch.arange(terms, dtype=torch.float64, device=powers_ntG.device).unsqueeze(1)
    away_s = (torch.arange(size, dtype=torch.float64, device=powers_ntG.device) - 0.5 * (size - 1)) * step
    coefficients_ns = torch.where(n_n1 == 0.0, 1.0, away_s / n_n1).cumprod(0)  # δⁿ/n!
    powers_tGn = powers_ntG.permute(1, 2, 0)
    return [(powers_tGn[..., m : m + terms] @ coefficients_ns).flatten(1) for m in range(ORDER + 1)]


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


class MomentsBackend(Backend):
    """Any scales on any device."""

    name = "moments"
    reach = REACH

    @torch.no_grad()
    def evaluate(self, query: Query) -> Tensor:
        """All logits of some tokens, then on a CPU groups of these side by side."""
        source, found = query.source, []
        for rows in blocks(source.tokens, self.tokens_at_a_time(query)):
            here = query.some(rows)
            logits = source.block(rows, here.targets_T)
            tokens = len(logits.z0)
            groups = 1 if source.device.type == "cuda" else max(1, min(workers(), tokens // _LEAST_TOKENS))
            parts = [
                (here.some(part), LogitBlock(logits.z0[part], logits.v[part]))
                for part in blocks(tokens, -(-tokens // groups))
            ]
            found += in_parallel([partial(self._answer, *part) for part in parts])
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def tokens_at_a_time(self, query: Query) -> int:
        """As many as fit into a block of memory."""
        return self.block_tokens or max(1, _ENTRIES // query.source.vocabulary)

    def _answer(self, query: Query, logits: LogitBlock) -> Tensor:
        """The answer of some tokens, from their logits."""
        z0_y_t1, v_y_t1 = (each.gather(1, query.targets_T.unsqueeze(1)) for each in logits)
        spread_t = self.spread(query, logits)
        scales_K, shift = query.scales_K, int(query.common is None or query.common[0] != 0.0)
        if shift:
            scales_K = torch.cat([torch.zeros_like(scales_K[..., :1]), scales_K], -1)
        sums = self._sums(query, logits, scales_K, spread_t)
        slopes = derivatives(sums, v_y_t1)
        gains_tK = gains(sums, [each[:, :1] for each in slopes], v_y_t1, spread_t, scales_K)
        initial_t = (z0_y_t1 - sums.z0_d[:, :1])[:, 0] - torch.log1p(sums.powers[0][:, 0])
        return query.answer(torch.stack([gains_tK, *slopes])[..., shift:], initial_t, logits, spread_t)

    def spread(self, query: Query, logits: LogitBlock) -> Tensor:
        """The range of each token's displacement."""
        return logits.v.amax(1) - logits.v.amin(1)

    def _sums(self, query: Query, logits: LogitBlock, scales_K: Tensor, spread_t: Tensor) -> Sums:
        """Sums at every scale: evenly spaced ones share power sums where this is less work."""
        step, count = None if query.common is None else spacing(query.common), scales_K.shape[-1]
        if step is not None:
            spread = float(spread_t.max())
            size = shared_size(count, step, spread, self.reach)
            if size > 1:
                half = 0.5 * (size - 1)
                terms = series_terms(half * step * spread)
                centres = scales_on(tuple((first + half) * step for first in range(0, count, size)), scales_K.device)
                entry, powers = self.power_sums(logits, centres, terms + ORDER)
                z0_d, v_d = (each.gather(1, entry).repeat_interleave(size, 1)[:, :count] for each in logits)
                return Sums(z0_d, v_d, tuple(each[:, :count] for each in series(powers, terms, size, step)))
        entry, powers = self.power_sums(logits, scales_K, ORDER + 1)
        return Sums(logits.z0.gather(1, entry), logits.v.gather(1, entry), powers.unbind())

    def power_sums(self, logits: LogitBlock, centres: Tensor, terms: int) -> tuple[Tensor, Tensor]:
        """`power_sums` of this back end."""
        return power_sums(*logits, centres, terms)
