"""What a path is asked, what a back end answers, and what a back end is; how the two ends of an update differ.

**Ends.** ΔU = A − C, output divergences and entropies (Prop. linear-endpoint). With p = softmax z(0), q = softmax z(1),
C = KL(p‖q) does not use the slope A, which makes ΔU − (A − C) a check. With δ_a = log q_a − log p_a and E = e^δ − 1,
each δ taken from its own log-sum-exp,

    KL(p‖q) = Σ p_a (E_a − δ_a),        KL(q‖p) = Σ p_a (δ_a E_a − (E_a − δ_a)),

because Σ p_a = Σ q_a = 1. Every term is non-negative, so both divergences keep their relative accuracy where
they are tiny, and an error in the log-sum-exps only enters squared. Entropies are
log1p(Σ_{a≠d} w_a) + Σ p_a (z_d − z_a), again without cancellation, and

    H(q) − H(p) = −Σ p_a E_a (z_a(0) − z_e(0)) − KL(q‖p),

with e the likeliest entry of p; where both entropies are smaller than what this adds up, their plain difference is
the more accurate and is taken instead. Where |δ| > 1, p E is q − p.

Shapes: T reference tokens (t of them together, c at a time), V vocabulary entries, N examples, K scales, M of them with
derivatives.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout.affine.sources import LogitSource, blocks
from loopscope.readout.path import Segments, segment_mean

_FEWEST_CELLS = 4
_ROUNDING = 2.0**-52  # of a scale, however it was computed


@dataclass(frozen=True)
class Query:
    """φ of every token at some scales, derivatives at some of those, and perhaps the endpoint distributions.

    Attributes:
        source: the logits.
        targets_T: reference labels.
        scales: the same scales for every token, or one scale for each token, float64 [T].
        places: indices of the scales with derivatives.
        order: highest derivative there.
        distributions: whether the endpoint distributions are wanted.
    """

    source: LogitSource
    targets_T: Tensor
    scales: tuple[float, ...] | Tensor
    places: tuple[int, ...]
    order: int
    distributions: bool = False

    @property
    def common(self) -> tuple[float, ...] | None:
        """The scales, unless each token has its own."""
        return None if isinstance(self.scales, Tensor) else self.scales

    @property
    def scales_K(self) -> Tensor:  # noqa: N802 - its shape
        """The scales on the source's device: [K], or [T, 1] where each token has its own."""
        if isinstance(self.scales, Tensor):
            return self.scales.double().unsqueeze(1)
        return scales_on(self.scales, self.source.device)

    def some(self, rows: slice) -> Query:
        """The same of some tokens."""
        scales = self.scales[rows] if isinstance(self.scales, Tensor) else self.scales
        return replace(self, targets_T=self.targets_T[rows], scales=scales)


@functools.lru_cache(maxsize=64)
def scales_on(scales: tuple[float, ...], device: torch.device) -> Tensor:
    """Scales on a device, sent there once; not to be written to."""
    return torch.tensor(scales, dtype=torch.float64).to(device)


@functools.lru_cache(maxsize=64)
def _places_on(places: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(places).to(device)


def taken(values: Tensor, places: Sequence[int]) -> Tensor:
    """values[..., places], without sending the places to the device at every call, which would wait for it."""
    count = len(places)
    if tuple(places) == tuple(range(count)):
        return values[..., :count]
    return values.index_select(-1, _places_on(tuple(places), values.device))


@dataclass(frozen=True)
class Survey:
    """An update seen at some scales; float64 throughout, of N examples or of T tokens.

    Attributes:
        alpha: the scales, [K].
        gains: φ at each of them, [N, K].
        moments_at: the scales with derivatives, [M].
        derivatives: φ, φ', … there, [order+1, N, M].
        initial: U(H), [N].
        spread: the range of the displacement, max v − min v; of an example its tokens' largest, [N].
        ends: the two divergences and entropies, [N] each; None where they were not requested.
    """

    alpha: Tensor
    gains: Tensor
    moments_at: Tensor
    derivatives: Tensor
    initial: Tensor
    spread: Tensor
    ends: EndpointDistributions | None

    @property
    def distributions(self) -> EndpointDistributions:
        """The two divergences and entropies."""
        assert self.ends is not None, "the query left them out"
        return self.ends

    @classmethod
    def of(
        cls,
        query: Query,
        gains: Tensor,
        derivatives: Tensor,
        initial: Tensor,
        spread: Tensor,
        ends: EndpointDistributions | None,
    ) -> Survey:
        """The answer to a query: `derivatives` are φ', φ'', … [order, T, M] of the scales with derivatives."""
        scales = query.scales_K
        derivatives = torch.cat([taken(gains, query.places).unsqueeze(0), derivatives])
        return cls(scales, gains, taken(scales, query.places), derivatives, initial, spread, ends)

    def averaged(self, segments: Segments) -> Survey:
        """Means over each example's tokens, without the example axis where there is a single one."""
        drop = 0 if segments.single else slice(None)

        def mean(values_T: Tensor) -> Tensor:
            return segment_mean(segments, values_T)[drop]

        ends = self.ends
        spread = self.spread.new_zeros(segments.examples).scatter_reduce_(0, segments.index, self.spread, "amax")
        return Survey(
            self.alpha,
            mean(self.gains),
            self.moments_at,
            segment_mean(segments, self.derivatives.transpose(0, 1)).transpose(0, 1)[:, drop],
            mean(self.initial),
            spread[drop],
            None if ends is None else EndpointDistributions(*(mean(field) for field in ends.fields())),
        )


def joined(parts: Sequence[Survey]) -> Survey:
    """Surveys of tokens that follow each other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    ends = [part.ends.stacked() for part in parts if part.ends is not None]
    return Survey(
        first.alpha,
        torch.cat([part.gains for part in parts]),
        first.moments_at,
        torch.cat([part.derivatives for part in parts], 1),
        torch.cat([part.initial for part in parts]),
        torch.cat([part.spread for part in parts]),
        EndpointDistributions(*torch.cat(ends, 1)) if ends else None,
    )


class Backend(ABC):
    """One way to evaluate φ and its derivatives.

    Attributes:
        name: what `impl=` calls it.
        max_order: the highest derivative.
    """

    name: str
    max_order = 4

    @abstractmethod
    def not_supported_reasons(self, query: Query) -> list[str]:
        """Why this back end cannot answer, one line each; none where it can."""

    @abstractmethod
    def evaluate(self, query: Query) -> Survey:
        """The answer, of every token."""


def grid(count: int) -> tuple[float, ...]:
    """`count` evenly spaced scales from 0 to 1."""
    if count < 2:
        raise LoopscopeError(f"{count} scales are not a grid from 0 to 1: give at least 2")
    return tuple(k / (count - 1) for k in range(count))


def places_on(count: int, scales: Sequence[float]) -> tuple[int, ...]:
    """Where some scales are on the grid.

    >>> places_on(21, [0.0, 0.25, 1.0])
    (0, 5, 20)
    """
    cells = count - 1
    places = tuple(round(alpha * cells) for alpha in scales)
    for alpha, place in zip(scales, places, strict=True):
        if not 0 <= place <= cells or abs(alpha * cells - place) > 1e-9:
            raise LoopscopeError(f"{alpha} is not one of the {count} evenly spaced scales from 0 to 1")
    return places


def spacing(scales: Sequence[float]) -> float | None:
    """The distance of evenly spaced scales from 0 to 1; None of any others, and of too few to share anything.

    >>> spacing([0.0, 0.25, 0.5, 0.75, 1.0]), spacing([0.0, 0.25, 0.6, 0.75, 1.0]), spacing([0.0, 1.0])
    (0.25, None, None)
    """
    cells = len(scales) - 1
    even = cells >= _FEWEST_CELLS and all(abs(alpha - k / cells) <= _ROUNDING for k, alpha in enumerate(scales))
    return 1.0 / cells if even else None


_SMALL = 0.1
_TERMS = 10  # of the series of (e^δ − 1 − δ)/δ² for |δ| ≤ 0.1: the first neglected is below 1e-17 of the first
_ELEMENTS = {"cpu": 1 << 15}  # at a time: a quarter of a megabyte of float64
_MOST_ELEMENTS = 1 << 22  # elsewhere


@dataclass(frozen=True)
class EndpointDistributions:
    """How the output distributions of the two endpoints differ, [t] each (or averaged over tokens, [N])."""

    divergence: Tensor  # KL(p(0)‖p(1))
    reverse_divergence: Tensor  # KL(p(1)‖p(0))
    initial_entropy: Tensor
    final_entropy: Tensor
    entropy_change: Tensor

    def fields(self) -> tuple[Tensor, ...]:
        """The five quantities in order."""
        return self.divergence, self.reverse_divergence, self.initial_entropy, self.final_entropy, self.entropy_change

    def stacked(self) -> Tensor:
        """The five quantities as one tensor, [5, t]."""
        return torch.stack(self.fields())


def endpoint_distributions(z0_tV: Tensor, v_tV: Tensor) -> EndpointDistributions:
    """Compare softmax(z0) with softmax(z0 + v), some tokens at a time."""
    rows = max(1, _ELEMENTS.get(z0_tV.device.type, _MOST_ELEMENTS) // z0_tV.shape[1])
    parts = [_compare(z0_tV[some], v_tV[some]) for some in blocks(z0_tV.shape[0], rows)]
    return EndpointDistributions(*torch.cat(parts, 1))


def _compare(z0: Tensor, v: Tensor) -> Tensor:
    """The five quantities, [5, c]."""
    end = z0 + v
    e_c1, d_c1 = torch.argmax(z0, dim=1, keepdim=True), torch.argmax(end, dim=1, keepdim=True)
    below_p, u = z0 - z0.gather(1, e_c1), v - v.gather(1, e_c1)
    below_q = (z0 - z0.gather(1, d_c1)) + (v - v.gather(1, d_c1))
    p, others_p = _softmax(below_p, e_c1)
    q, others_q = _softmax(below_q, d_c1)
    log_p, log_q = torch.log1p(others_p), torch.log1p(others_q)
    direct = below_p.gather(1, d_c1) + u.gather(1, d_c1) + (log_q - log_p)
    # log q − log p two ways: u − growth is relatively accurate where it is small; where it is not, the two log
    # probabilities themselves do not depend on how large the displacement is.
    delta = u - _log_mean_exp(u, p, q, direct)
    near = delta.abs() <= 1.0
    held = delta.clamp(-1.0, 1.0)
    rest = excess(held)
    grown = rest + held
    far = (below_q - log_q) - (below_p - log_p)
    divergence = torch.where(near, p * rest, q - p * (1.0 + far)).sum(1)
    reverse = torch.where(near, p * (held * grown - rest), p - q * (1.0 - far)).sum(1)
    initial, final = log_p[:, 0] - (p * below_p).sum(1), log_q[:, 0] - (q * below_q).sum(1)
    moved = torch.where(near, p * grown, q - p) * below_p
    smaller = initial + final < moved.abs().sum(1) + reverse
    change = torch.where(smaller, final - initial, -moved.sum(1) - reverse)
    return torch.stack([divergence, reverse, initial, final, change])


def _softmax(below_cV: Tensor, top_c1: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities, and the mass of all entries but the likeliest in its units, [c, 1]."""
    w_cV = torch.exp(below_cV)
    w_cV.scatter_(1, top_c1, 0.0)
    others_c1 = w_cV.sum(1, keepdim=True)
    w_cV.scatter_(1, top_c1, 1.0)
    return w_cV.div_(1.0 + others_c1), others_c1


def _log_mean_exp(u: Tensor, p: Tensor, q: Tensor, direct: Tensor) -> Tensor:
    """The logarithm of E_p[e^u], [c, 1], relatively accurate where it is small.

    `direct` is the same as a difference of log-sum-exps, accurate where it is not.
    """
    grown = torch.exp(direct.clamp(-1.0, 1.0)) * q - p
    mean = torch.where(u > 1.0, grown, p * torch.expm1(u.clamp(max=1.0))).sum(1, keepdim=True)
    return torch.where(direct.abs() <= 1.0, torch.log1p(mean.clamp(min=-0.9)), direct)


def excess(delta: Tensor) -> Tensor:
    """e^δ − 1 − δ for |δ| ≤ 1, relatively accurate: δ² (1/2! + δ/3! + …) where a difference would not be."""
    series = torch.full_like(delta, 1.0 / math.factorial(_TERMS + 1))
    for k in range(_TERMS, 1, -1):
        series.mul_(delta).add_(1.0 / math.factorial(k))
    series.mul_(delta).mul_(delta)
    return torch.where(delta.abs() <= _SMALL, series, torch.expm1(delta).sub_(delta))
