"""What a path asks of which logits, what a back end answers, and what a back end is.

Logits are two stored matrices, or two states and a linear head, some tokens at a time.

A back end answers with one float64 tensor [slots, T], token by token:

    φ at the K scales · φ', φ'', … up to `order` at each scale with derivatives · what `EXTRA` names

Shapes: T reference tokens, t of them together, V vocabulary entries, b of them, D hidden width, N examples, K scales, M
of them with derivatives.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout.blocks import blocks, full_precision_products
from loopscope.readout.checks import require_finite, require_matrix, require_same_shape
from loopscope.readout.softmax import Softmax, SoftmaxChange

_FEWEST_CELLS = 4
_ROUNDING = 2.0**-52  # of a scale, however it was computed
_ELEMENTS = {"cpu": 1 << 15}  # of logits at a time: a quarter of a megabyte of float64
_MOST_ELEMENTS = 1 << 22  # elsewhere

SUMMED = 256
"""Products of float32 numbers that are added up in float32 on a CPU, before their sum is added up in float64."""

_COLUMNS = 1024
"""Rows of the head that a CPU converts and multiplies at a time."""


class LogitBlock(NamedTuple):
    """Initial logits z(0) and displacements v of some tokens, float64 [t, V] each."""

    z0: Tensor
    v: Tensor


class StoredLogits:
    """Two matrices that are already there."""

    def __init__(self, z0_TV: Tensor, v_TV: Tensor) -> None:
        require_matrix("z0", z0_TV)
        require_matrix("v", v_TV)
        require_same_shape("z0", z0_TV, "v", v_TV)
        require_finite("z0", z0_TV)
        require_finite("v", v_TV)
        self._z0_TV, self._v_TV = z0_TV.detach(), v_TV.detach()
        self.tokens, self.vocabulary = z0_TV.shape
        self.device = z0_TV.device

    @property
    def is_float64(self) -> bool:
        """Whether blocks are the matrices themselves."""
        return self._z0_TV.dtype == self._v_TV.dtype == torch.float64

    def block(self, rows: slice, targets_t: Tensor) -> LogitBlock:
        """Rows of the matrices."""
        return LogitBlock(self._z0_TV[rows].double(), self._v_TV[rows].double())

    def states(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The same tokens for autograd: the logits themselves are the state."""
        return self._z0_TV[rows].double(), self._v_TV[rows].double()

    def readout(self, state: Tensor) -> Tensor:
        """The logits of a state."""
        return state


class HeadLogits:
    """A linear head over two stored states: z(0) = H Wᵀ + b and v = (H⁺ − H) Wᵀ.

    D = H⁺ − H is formed in the readout's dtype from the states as they are stored. Both products are taken in that
    dtype with TF32 off; what follows is float64.
    """

    def __init__(
        self, h_TD: Tensor, h_plus_TD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, dtype: torch.dtype
    ) -> None:
        self.h_TD, self.h_plus_TD = h_TD.detach(), h_plus_TD.detach()
        self.weight_VD = weight_VD.detach()
        self.bias_V = None if bias_V is None else bias_V.detach()
        self.dtype = dtype
        self.tokens, self.vocabulary = int(h_TD.shape[0]), int(weight_VD.shape[0])
        self.device = h_TD.device

    @functools.cached_property
    def _hd_T2D(self) -> Tensor:  # noqa: N802 - its shape
        # Side by side, so that both products are one: twice the rows for each block of the head that is read.
        both = torch.empty(self.tokens, 2, self.h_TD.shape[1], dtype=self.dtype, device=self.device)
        both[:, 0] = self.h_TD
        torch.sub(self.h_plus_TD.to(self.dtype), both[:, 0], out=both[:, 1])
        return both

    @property
    def _in_parts(self) -> bool:
        return self.dtype == torch.float32 and self.device.type == "cpu" and self.h_TD.shape[1] > SUMMED

    def block(self, rows: slice, targets_t: Tensor) -> LogitBlock:
        """Both products, on a CPU with one block of the head after the other, and row by row those of the targets."""
        states_nD, on_cpu = self._hd_T2D[rows].flatten(0, 1), self.device.type == "cpu"
        columns = blocks(self.vocabulary, _COLUMNS if on_cpu else self.vocabulary)
        parts = [self._products(states_nD, self.weight_VD[some].to(self.dtype)) for some in columns]
        products_t2V = (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).view(-1, 2, self.vocabulary)
        if on_cpu:  # elsewhere the look would wait for the device; results are looked at in any case
            require_finite("the logits", products_t2V)
        products_t2V = products_t2V.double()
        weight_t1D, at_t21 = (
            self.weight_VD[targets_t].to(self.dtype).unsqueeze(1),
            targets_t.view(-1, 1, 1).expand(-1, 2, 1),
        )
        precise = torch.float64 if self._in_parts else self.dtype
        own_t2 = (self._hd_T2D[rows] * weight_t1D).sum(2, dtype=precise)
        products_t2V.scatter_(2, at_t21, own_t2.double().unsqueeze(2))
        z0_tV, v_tV = products_t2V.unbind(1)
        if self.bias_V is not None:
            z0_tV += self.bias_V.double()
        return LogitBlock(z0_tV, v_tV)

    def _products(self, states_nD: Tensor, weight_bD: Tensor) -> Tensor:
        """States times a block of the head, [n, b]."""
        with full_precision_products():
            if not self._in_parts:
                return states_nD @ weight_bD.T
            parts = (states_nD[:, part] @ weight_bD[:, part].T for part in blocks(states_nD.shape[1], SUMMED))
            total_nb = next(parts).double()
            for part_nb in parts:
                total_nb += part_nb
            return total_nb

    @functools.cached_property
    def _wide_head(self) -> tuple[Tensor, Tensor | None]:
        return self.weight_VD.to(self.dtype), None if self.bias_V is None else self.bias_V.to(self.dtype)

    def states(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The same tokens for autograd: H and D."""
        return self._hd_T2D[rows, 0], self._hd_T2D[rows, 1]

    def readout(self, state: Tensor) -> Tensor:
        """The logits of a state, by the whole head."""
        with full_precision_products():
            return torch.nn.functional.linear(state, *self._wide_head)


LogitSource: TypeAlias = StoredLogits | HeadLogits
"""Initial logits and their displacement for every reference token, in blocks."""


class EndpointDistributions(NamedTuple):
    """How the output distributions of the two endpoints differ, averaged over reference tokens, [N] each."""

    divergence: Tensor  # KL(p(0)‖p(1))
    reverse_divergence: Tensor  # KL(p(1)‖p(0))
    initial_entropy: Tensor
    final_entropy: Tensor
    entropy_change: Tensor


EXTRA = ("initial", *EndpointDistributions._fields, "spread")
"""U(H), the endpoint distributions (NaN where they were not asked for), and max v − min v."""


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

    def answer(self, stack: Tensor, initial_t: Tensor, logits: LogitBlock, spread_t: Tensor | None = None) -> Tensor:
        """The answer for some tokens, from φ, φ', … at all scales, [≥ order+1, t, K]."""
        z0_tV, v_tV = logits
        spread_t = v_tV.amax(1) - v_tV.amin(1) if spread_t is None else spread_t
        if self.distributions:
            ends = _distributions(z0_tV, v_tV)
        else:
            ends = torch.full((5, len(initial_t)), torch.nan, dtype=torch.float64, device=initial_t.device)
        slopes = taken(stack[1 : self.order + 1], self.places).permute(2, 0, 1).flatten(0, 1)
        return torch.cat([stack[0].T, slopes, initial_t.unsqueeze(0), ends, spread_t.unsqueeze(0)])


@functools.lru_cache(maxsize=64)
def scales_on(scales: tuple[float, ...], device: torch.device) -> Tensor:
    """Scales on a device, sent there once; not to be written to."""
    return torch.tensor(scales, dtype=torch.float64).to(device)


@functools.lru_cache(maxsize=64)
def _places_on(places: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(places, dtype=torch.int64).to(device)


def taken(values: Tensor, places: Sequence[int], axis: int = -1) -> Tensor:
    """The entries of an axis at some places, which are sent to the device once: sending them waits for it."""
    if tuple(places) == tuple(range(len(places))):
        return values.narrow(axis, 0, len(places))
    return values.index_select(axis, _places_on(tuple(places), values.device))


def _distributions(z0_tV: Tensor, v_tV: Tensor) -> Tensor:
    """What `EndpointDistributions` names of each token, [5, t], some tokens at a time."""
    found = []
    for some in blocks(len(z0_tV), max(1, _ELEMENTS.get(z0_tV.device.type, _MOST_ELEMENTS) // z0_tV.shape[1])):
        z0, v = z0_tV[some], v_tV[some]
        change = SoftmaxChange(Softmax(z0), Softmax.on_path(z0, v, 1.0), v)
        before, after = change.before.entropy_n, change.after.entropy_n
        ends = (change.divergence_n, change.reverse_divergence_n, before, after, change.entropy_n)
        found.append(torch.stack(ends))
    return torch.cat(found, 1)


@dataclass(frozen=True)
class Survey:
    """An update seen at some scales; float64 throughout, without the example axis where there is a single one.

    Attributes:
        alpha: the scales, [K].
        gains: φ at each of them, [N, K].
        moments_at: the scales with derivatives, [M].
        derivatives: φ, φ', … there, [order+1, N, M].
        initial: U(H), [N].
        distributions: the two divergences and entropies, [N] each; NaN where they were not asked for.
    """

    alpha: Tensor
    gains: Tensor
    moments_at: Tensor
    derivatives: Tensor
    initial: Tensor
    distributions: EndpointDistributions

    @classmethod
    def of(cls, query: Query, answer: Tensor, *, single: bool = False) -> Survey:
        """By name, from an answer that was averaged over the tokens of each example."""
        scales, drop = query.scales_K, 0 if single else slice(None)
        slopes, extra = slice(scales.shape[-1], -len(EXTRA)), answer[-len(EXTRA) :, drop]
        gains = answer[: slopes.start].T
        stack = answer[slopes].view(len(query.places), query.order, answer.shape[1]).permute(1, 2, 0)
        stack = torch.cat([taken(gains, query.places).unsqueeze(0), stack])
        at = taken(scales, query.places)
        return cls(scales, gains[drop], at, stack[:, drop], extra[0], EndpointDistributions(*extra[1:-1]))


class Backend(ABC):
    """One way to evaluate φ and its derivatives, some tokens at a time.

    Attributes:
        name: what `impl=` calls it.
        max_order: the highest derivative.
    """

    name: str
    max_order = 4

    def __init__(self, block_tokens: int | None = None) -> None:
        self.block_tokens = block_tokens

    def not_supported_reasons(self, query: Query) -> list[str]:
        """Why this back end cannot answer, one line each; none where it can."""
        return [] if query.order <= self.max_order else [f"it has derivatives up to order {self.max_order}"]

    @abstractmethod
    def evaluate(self, query: Query) -> Tensor:
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
