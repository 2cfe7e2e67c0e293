r"""Enclosures of everything that is certified of an update: from states and head to one interval per question.

Tokens → mean over each sequence → the question itself, or the joint utility of its options. A question's scale α̂
follows from the middle of the enclosures of A and Q; it is a float64 number, and the gain at exactly that
number is enclosed.

On cells of [0, 1] −φ'' and |φ'''| are bounded by the lemma of `readout.affine.envelope`, here with intervals.

**Options.** The joint utility is U = s_* − log Σ_k exp s_k. With π = softmax s, and primes for derivatives along the
path, U and its derivatives are written in differences between options, so that they are as small as what the update
changes:

    U = −log1p Σ_{k≠*} e^{s_k − s_*},          φ' = Σ_k π_k (s'_* − s'_k),
    φ'' = Σ_k π_k (s''_* − s''_k) − Σ_{j<k} π_j π_k (s'_j − s'_k)²          (the last sum is Var_π s'),
    φ(α) = −log1p Σ_{k≠*} π_k(0) (e^{g_k − g_*} − 1),          g_k = s_k(α) − s_k(0).

Interval arithmetic encloses each. The same formula for φ'' with scores, slopes and curvatures that are enclosed over
a whole cell encloses it over the cell. Scores are concave: on a cell [l, r] a score lies above the smaller of its end
values and below its tangents, and its slope lies between those at r and at l.

Shapes: N reference tokens, R sequences, B or G questions, O options of the largest question, D hidden width, L cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from loopscope.readout.affine.envelope import Moments, cell_bounds
from loopscope.readout.blocks import blocks
from loopscope.readout.certified.bounds import CertifiedBounds, PathEnclosure, certified_bounds
from loopscope.readout.certified.intervals import Interval, mean_of_segments, require_arithmetic, total
from loopscope.readout.certified.tokens import RelativeLogits, gains, moments, relative_logits
from loopscope.readout.options import OptionGroups

CELLS = 16
"""Cells of [0, 1] on which derivatives are bounded; a power of two, so that the nodes are exact."""
QUARTER = 0.25
_COLUMNS = 8  # arrays as large as the logits that gains at three scales take at a time
ChooseScale = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Options:
    """The options of each question, and what is enclosed of them, [G, O, ...]."""

    groups: OptionGroups

    def gathered(self, sequences: Interval) -> Interval:
        """[R, ...] to [G, O, ...], zero where a question has fewer options."""
        present = self.groups.present.reshape(*self.groups.present.shape, *[1] * (sequences.low.dim() - 1))
        return sequences.each(lambda end: torch.where(present, end[self.groups.member], 0.0))

    def utility(self, scores: Interval) -> Interval:
        """U, [G, ...]."""
        return -total(self._kept((scores - self._right(scores)).exp(), wrong=True), 1).log1p()

    def probabilities(self, scores: Interval) -> Interval:
        """π, [G, O, ...]: 1 / (1 + Σ_{j≠k} e^{s_j − s_k})."""
        odds = (scores.unsqueeze(1) - scores.unsqueeze(2)).exp()
        same = torch.eye(scores.low.shape[1], dtype=torch.bool, device=odds.low.device)
        return self._kept(1.0 / (1.0 + total(_masked(odds, self.groups.present.unsqueeze(1) & ~same), 2)))

    def slope(self, pi: Interval, slopes: Interval) -> Interval:
        """φ', [G, ...]."""
        return total(self._kept(pi * (self._right(slopes) - slopes), wrong=True), 1)

    def curvature(self, pi: Interval, slopes: Interval, curvatures: Interval) -> Interval:
        """φ'', [G, ...]."""
        bent = total(self._kept(pi * (self._right(curvatures) - curvatures), wrong=True), 1)
        pairs = (pi.unsqueeze(1) * pi.unsqueeze(2)) * (slopes.unsqueeze(1) - slopes.unsqueeze(2)).square()
        present = self.groups.present
        both = (present.unsqueeze(1) & present.unsqueeze(2)).triu(1)
        return bent - total(total(_masked(pairs, both).clamp(0.0), 1), 1)

    def gain(self, pi: Interval, gains: Interval) -> Interval:
        """φ at a scale where the scores have gained `gains`, [G, ...]; `pi` is that of scale 0."""
        grown = (gains - self._right(gains)).expm1()
        return -total(self._kept(pi * grown, wrong=True), 1).log1p()

    def _right(self, values: Interval) -> Interval:
        """The right option's values, [G, 1, ...]."""
        place = self.groups.target.reshape(-1, *[1] * (values.low.dim() - 1))
        place = place.expand(-1, 1, *values.low.shape[2:])
        return values.each(lambda end: end.gather(1, place))

    def _kept(self, values: Interval, *, wrong: bool = False) -> Interval:
        """Zero where there is no option; with `wrong` also for the right one."""
        kept = self.groups.present
        if wrong:
            kept = kept.scatter(1, self.groups.target.unsqueeze(1), False)
        return _masked(values, kept)


def _masked(values: Interval, kept: Tensor) -> Interval:
    kept = kept.reshape(*kept.shape, *[1] * (values.low.dim() - kept.dim()))
    return values.each(lambda end: torch.where(kept, end, 0.0))


def over_cells(scores: Interval, slopes: Interval, h: float) -> tuple[Interval, Interval]:
    """Concave scores and their slopes over the cells between nodes: [..., L + 1] to [..., L] each."""
    s_l, s_r, d_l, d_r = scores[..., :-1], scores[..., 1:], slopes[..., :-1], slopes[..., 1:]
    rising, falling = s_l + d_l.clamp(0.0) * h, s_r + (-d_r).clamp(0.0) * h
    values = Interval(torch.minimum(s_l.low, s_r.low), torch.minimum(rising.high, falling.high))
    return values, Interval(d_r.low, d_l.high)


@dataclass(frozen=True)
class States:
    """Where the reference tokens of some questions are predicted, before and after an update, and the head.

    Attributes:
        before_ND: H.
        after_ND: H⁺.
        weight_VD: the head's matrix.
        bias_V: its bias, if there is one.
        targets_N: the reference tokens.
        tokens_R: how many of them each sequence has, one sequence after the other.
        options: the options of each question; None where each sequence is one reference solution.
        sequences_B: sequences of each question.
    """

    before_ND: Tensor
    after_ND: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None
    targets_N: Tensor
    tokens_R: Tensor
    options: OptionGroups | None
    sequences_B: Tensor


@dataclass(frozen=True)
class UpdateEnclosures:
    """One interval per question, [B] each.

    Attributes:
        utility: U(H).
        slope: A.
        quadratic: Q.
        prediction: A + Q.
        gain: ΔU.
        quarter_gain: φ(1/4).
        scale: α̂, a float64 number.
        predicted_gain: φ at exactly that number.
        bounds: the paper's bounds.
    """

    utility: Interval
    slope: Interval
    quadratic: Interval
    prediction: Interval
    gain: Interval
    quarter_gain: Interval
    scale: Tensor
    predicted_gain: Interval
    bounds: CertifiedBounds


def enclose_update(states: States, choose: ChooseScale, entries: int, cells: int = CELLS) -> UpdateEnclosures:
    """Everything about an update; `choose` makes α̂ of A and Q, `entries` float64 numbers fit at a time."""
    require_arithmetic(str(states.before_ND.device))
    ends = (states.before_ND, states.after_ND)
    logits = relative_logits(*ends, states.weight_VD, states.bias_V, states.targets_N)
    nodes = _node_moments(logits, cells, entries)
    average = partial(mean_of_segments, counts=states.tokens_R)
    log_p, mean, variance = map(average, nodes[:3])
    bounded = cell_bounds(nodes, logits.spread_t, 1.0 / cells, average, Interval.point)
    curvature = Interval(bounded.curvature_low, bounded.curvature_high)
    own = PathEnclosure(-mean, -variance, -curvature, bounded.third)
    options = None if states.options is None else Options(states.options)
    path = own if options is None else _joint_path(options, log_p, own)
    slope, quadratic = path.slopes[:, 0], path.curvatures[:, 0] * 0.5
    scale_B = choose(_middle(slope), _middle(quadratic))
    question_R = torch.repeat_interleave(torch.arange(len(scale_B), device=scale_B.device), states.sequences_B)
    scale_N = scale_B[torch.repeat_interleave(question_R, states.tokens_R)]
    gains_R3 = average(_gains(logits, nodes, scale_N, entries))
    if options is None:
        utility, gains_B3 = log_p[:, 0], gains_R3
    else:
        scores = options.gathered(log_p[:, 0])
        utility = options.utility(scores)
        pi = options.probabilities(scores)
        gains_B3 = options.gain(pi.unsqueeze(2), options.gathered(gains_R3))
    return UpdateEnclosures(
        utility,
        slope,
        quadratic,
        slope + quadratic,
        gains_B3[:, 2],
        gains_B3[:, 0],
        scale_B,
        gains_B3[:, 1],
        certified_bounds(path, slope, quadratic, scale_B),
    )


def _middle(interval: Interval) -> Tensor:
    """The middle of an enclosure, 0 where nothing is known."""
    return torch.nan_to_num(0.5 * (interval.low + interval.high), nan=0.0, posinf=0.0, neginf=0.0)


def _node_moments(logits: RelativeLogits, cells: int, entries: int) -> Moments:
    tokens, parts, block = logits.t_tBb.shape
    nodes_K = torch.arange(cells + 1, dtype=torch.float64, device=logits.t_tBb.device) / cells
    found = []
    for rows in blocks(tokens, max(1, entries // (parts * block * (cells + 1)))):
        some = logits.some(rows)
        found.append(moments(some, nodes_K.expand(len(some.t_tBb), -1)))
    return Moments(*(_joined(each) for each in zip(*found, strict=True)))


def _gains(logits: RelativeLogits, nodes: Moments, scale_N: Tensor, entries: int) -> Interval:
    """φ of each token at 1/4, α̂ and 1, [N, 3]."""
    tokens, parts, block = logits.t_tBb.shape
    cells = nodes.log_p.low.shape[1] - 1
    found = []
    for rows in blocks(tokens, max(1, entries // (parts * block * _COLUMNS))):
        some, own_n = logits.some(rows), scale_N[rows]
        known = nodes.log_p[rows]
        scales = torch.stack([torch.full_like(own_n, QUARTER), own_n, torch.ones_like(own_n)], 1)
        ends = [known[:, int(QUARTER * cells)], moments(some, own_n.unsqueeze(1)).log_p[:, 0], known[:, cells]]
        found.append(gains(some, scales, known[:, 0], _joined([x.unsqueeze(1) for x in ends], 1)))
    return _joined(found)


def _joint_path(options: Options, log_p: Interval, own: PathEnclosure) -> PathEnclosure:
    h = 1.0 / own.third.shape[1]
    scores, slopes, curvatures = (options.gathered(x) for x in (log_p, own.slopes, own.curvatures))
    pi = options.probabilities(scores)
    cell_scores, cell_slopes = over_cells(scores, slopes, h)
    cell_pi = options.probabilities(cell_scores)
    cells = options.curvature(cell_pi, cell_slopes, options.gathered(own.cells))
    return PathEnclosure(
        options.slope(pi, slopes),
        options.curvature(pi, slopes, curvatures),
        cells,
        torch.full_like(cells.low, torch.inf),
    )


def _joined(parts: Sequence[Interval], axis: int = 0) -> Interval:
    return Interval(torch.cat([part.low for part in parts], axis), torch.cat([part.high for part in parts], axis))
