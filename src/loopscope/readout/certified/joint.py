r"""Enclosures of the joint option utility U = s_* − log Σ_k exp s_k from enclosures of the options' scores.

With π = softmax s, and primes for derivatives along the path, U and its derivatives are written in differences between
options, so that they are as small as what the update changes:

    U = −log1p Σ_{k≠*} e^{s_k − s_*},          φ' = Σ_k π_k (s'_* − s'_k),
    φ'' = Σ_k π_k (s''_* − s''_k) − Σ_{j<k} π_j π_k (s'_j − s'_k)²          (the last sum is Var_π s'),
    φ(α) = −log1p Σ_{k≠*} π_k(0) (e^{g_k − g_*} − 1),          g_k = s_k(α) − s_k(0).

Interval arithmetic encloses each. The same formula for φ'' with scores, slopes and curvatures that are enclosed over
a whole cell encloses it over the cell. Scores are concave: on a cell [l, r] a score lies above the smaller of its end
values and below its tangents, and its slope lies between those at r and at l.

Shapes: R sequences, G questions, O options of the largest question; further axes follow and are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopscope.readout.certified.intervals import Interval, total
from loopscope.readout.options import OptionGroups


@dataclass(frozen=True)
class Options:
    """The options of each question, and what is enclosed of them, [G, O, ...]."""

    groups: OptionGroups

    def gathered(self, sequences: Interval) -> Interval:
        """[R, ...] to [G, O, ...], zero where a question has fewer options."""
        present = self.groups.present.reshape(*self.groups.present.shape, *[1] * (sequences.low.dim() - 1))
        low, high = (torch.where(present, end[self.groups.member], 0.0) for end in (sequences.low, sequences.high))
        return Interval(low, high)

    def utility(self, scores: Interval) -> Interval:
        """U, [G, ...]."""
        return -total(self._kept((scores - self._right(scores)).exp(), wrong=True), 1).log1p()

    def probabilities(self, scores: Interval) -> Interval:
        """π, [G, O, ...]: 1 / (1 + Σ_{j≠k} e^{s_j − s_k})."""
        odds = (scores.unsqueeze(1) - scores.unsqueeze(2)).exp()
        options = scores.low.shape[1]
        counted = self.groups.present.unsqueeze(1) & ~torch.eye(options, dtype=torch.bool, device=odds.low.device)
        others = total(_masked(odds, counted), 2)
        one = Interval.point(torch.ones_like(scores.low))
        return self._kept(one / (one + others))

    def slope(self, pi: Interval, slopes: Interval) -> Interval:
        """φ', [G, ...]."""
        return total(self._kept(pi * (self._right(slopes) - slopes), wrong=True), 1)

    def curvature(self, pi: Interval, slopes: Interval, curvatures: Interval) -> Interval:
        """φ'', [G, ...]."""
        bent = total(self._kept(pi * (self._right(curvatures) - curvatures), wrong=True), 1)
        pairs = (pi.unsqueeze(1) * pi.unsqueeze(2)) * (slopes.unsqueeze(1) - slopes.unsqueeze(2)).square()
        options = slopes.low.shape[1]
        above = torch.ones(options, options, dtype=torch.bool, device=pi.low.device).triu(1)
        both = self.groups.present.unsqueeze(1) & self.groups.present.unsqueeze(2) & above
        return bent - total(total(_masked(pairs, both).clamped(0.0), 1), 1)

    def gain(self, pi: Interval, gains: Interval) -> Interval:
        """φ at a scale where the scores have gained `gains`, [G, ...]; `pi` is that of scale 0."""
        grown = (gains - self._right(gains)).expm1()
        return -total(self._kept(pi * grown, wrong=True), 1).log1p()

    def _right(self, values: Interval) -> Interval:
        """The right option's values, [G, 1, ...]."""
        place = self.groups.target.reshape(-1, *[1] * (values.low.dim() - 1))
        place = place.expand(-1, 1, *values.low.shape[2:])
        return Interval(values.low.gather(1, place), values.high.gather(1, place))

    def _kept(self, values: Interval, *, wrong: bool = False) -> Interval:
        """Zero where there is no option; with `wrong` also for the right one."""
        kept = self.groups.present
        if wrong:
            kept = kept.scatter(1, self.groups.target.unsqueeze(1), False)
        return _masked(values, kept)


def _masked(values: Interval, kept: Tensor) -> Interval:
    kept = kept.reshape(*kept.shape, *[1] * (values.low.dim() - kept.dim()))
    return Interval(torch.where(kept, values.low, 0.0), torch.where(kept, values.high, 0.0))


def over_cells(scores: Interval, slopes: Interval, h: float) -> tuple[Interval, Interval]:
    """Concave scores and their slopes over the cells between nodes: [..., L + 1] to [..., L] each."""
    s_l, s_r, d_l, d_r = scores[..., :-1], scores[..., 1:], slopes[..., :-1], slopes[..., 1:]
    zero = torch.zeros_like(d_l.low)
    rising = (s_l + Interval(zero, d_l.high.clamp(min=0.0)).times(h)).high
    falling = (s_r + Interval(zero, (-d_r.low).clamp(min=0.0)).times(h)).high
    values = Interval(torch.minimum(s_l.low, s_r.low), torch.minimum(rising, falling))
    return values, Interval(d_r.low, d_l.high)
