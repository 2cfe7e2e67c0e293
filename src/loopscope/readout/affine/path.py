"""Paths through an affine readout (Appendix C): logits z(α) = z(0) + αv, nothing differentiated.

Shapes: T reference tokens, V vocabulary entries, D hidden width, N examples, K scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout.affine import reference
from loopscope.readout.affine.choose import EVEN_WAYS, WAYS, WHOLE_ROWS, Asked, check_impl, choose, is_even
from loopscope.readout.affine.endpoint import EndpointDecomposition, EndpointDistributions, endpoint_distributions
from loopscope.readout.affine.envelope import CellBounds, Envelope, cell_bounds, envelope_from_bounds
from loopscope.readout.affine.even import EvenBlocks, EvenScales, EvenSurvey, Survey, even_survey, scales_on
from loopscope.readout.affine.fused.path import FusedPath, TokenSurvey
from loopscope.readout.affine.moments import Swept, sweep
from loopscope.readout.affine.sources import LogitBlock, LogitSource, ScaledDisplacement, blocks
from loopscope.readout.checks import (
    as_block,
    as_order,
    require_results_finite,
)
from loopscope.readout.hessian_vector import autograd_sweep
from loopscope.readout.path import Derivatives, SegmentMean, Segments, UtilityPath, segment_mean

_BLOCK_ELEMENTS = 1 << 16  # half a megabyte of float64: a few such arrays stay in a core's cache
_BLOCK_VOCABULARY = 8192
_AT_START = 1e-60
MOST_OWN = 1  # the highest derivative that the kernel of scales of one's own takes


class AffinePath(UtilityPath):
    """φ along an affine logit path, per example; made by `affine_path` or `affine_path_from_states`.

    Derivatives go up to the fourth. Results are exact functions of the given logits up to rounding: relative
    accuracy 1e-12 or better for φ'' and the divergences however peaked the softmax or small the displacement, and
    for φ, φ', φ''' and φ'''' relative to the sum of the absolute values of what they add up.

    Attributes:
        ways_taken: names of the ways (`choose.WAYS`) that have answered so far.
    """

    def __init__(
        self,
        source: LogitSource,
        targets_T: Tensor,
        segments: Segments,
        *,
        impl: str,
        block_tokens: int | None = None,
        block_vocabulary: int | None = None,
        fused: FusedPath | None = None,
    ) -> None:
        self._source, self._targets_T, self._segments = source, targets_T, segments
        self._impl, self._fused = impl, fused
        self._on = torch.empty(1, dtype=torch.float64, device=source.device)
        self.ways_taken: set[str] = set()
        self._zero: Tensor | None = None
        check_impl(impl, self._on)
        self.max_order = WAYS[impl].max_order if impl in WAYS else 4
        width = min(as_block("block_vocabulary", block_vocabulary, _BLOCK_VOCABULARY), source.vocabulary)
        self._block_vocabulary = source.vocabulary if impl in WHOLE_ROWS else width
        self._block_tokens = as_block("block_tokens", block_tokens, max(1, _BLOCK_ELEMENTS // width))

    @property
    def examples(self) -> int:
        """How many examples this path holds."""
        return self._segments.examples

    @property
    def single(self) -> bool:
        """Whether results drop the example axis."""
        return self._segments.single

    @property
    def device(self) -> torch.device:
        """That of the logits."""
        return self._source.device

    @property
    def tokens(self) -> int:
        """T, the number of reference tokens."""
        return self._source.tokens

    def per_token(self) -> AffinePath:
        """The same path with every reference token an example of its own."""
        return self._with(self._source, self._targets_T, self._segments.per_token(), self._fused)

    def _with(
        self, source: LogitSource, targets_T: Tensor, segments: Segments, fused: FusedPath | None = None
    ) -> AffinePath:
        return AffinePath(
            source,
            targets_T,
            segments,
            impl=self._impl,
            block_tokens=self._block_tokens,
            block_vocabulary=self._block_vocabulary,
            fused=fused,
        )

    def _some(self, tokens_t: Tensor) -> AffinePath:
        """Some of the tokens, each by itself, without the fused kernels."""
        segments = Segments(tokens_t, torch.ones_like(tokens_t), single=False).per_token()
        return self._with(self._source.some(tokens_t), self._targets_T[tokens_t], segments)

    def _choose(self, asked: Asked) -> str:
        way = choose(self._impl, asked, self._on, has_fused=self._fused is not None)
        self.ways_taken.add(way)
        return way

    def _sweep(self, way: str, rows: slice, scales: list[float], order: int) -> Swept:
        targets_t = self._targets_T[rows]
        if way == "autograd":
            swept = autograd_sweep(self._source.states(rows), targets_t, scales, order)
        elif way in EVEN_WAYS:
            found = self._even(way, rows, len(scales), None, order, distributions=False)
            swept = Swept(found.derivatives, found.initial, found.spread)
        elif way == "reference":
            target = self._source.target_logits(rows, targets_t)
            z0_tV, v_tV = self._source.block(rows, slice(0, self._source.vocabulary), targets_t, target)
            at = [reference.derivatives_at(z0_tV, v_tV, targets_t, alpha, order) for alpha in scales]
            initial = reference.log_probability_at_start(z0_tV, targets_t)
            swept = Swept(torch.stack(at, -1), initial, v_tV.amax(1) - v_tV.amin(1))
        else:
            swept = sweep(self._source, rows, targets_t, scales, order, self._block_vocabulary)
        require_results_finite("the path", swept.derivatives)
        return swept

    def _even(
        self, way: str, rows: slice, count: int, places: tuple[int, ...] | None, order: int, *, distributions: bool
    ) -> EvenSurvey:
        """The same at evenly spaced scales from 0 to 1, with derivatives at some places (None: all)."""
        return even_survey(
            self._source,
            rows,
            self._targets_T[rows],
            count,
            places=places,
            order=order,
            distributions=distributions,
            block_vocabulary=EvenBlocks.on(self._source.device, self._block_vocabulary).vocabulary,
            kernel=way == "fp64_kernel",
        )

    def _sweeps(self, scales: list[float], order: int) -> Iterator[tuple[slice, Swept]]:
        """All tokens, a chunk of them at a time."""
        way = self._choose(Asked(even=is_even(scales)))
        for rows in self._rows(way):
            yield rows, self._sweep(way, rows, scales, order)

    def _rows(self, way: str) -> list[slice]:
        size = EvenBlocks.on(self._source.device).tokens if way in EVEN_WAYS else self._block_tokens
        return list(blocks(self._source.tokens, size))

    def at_scales(self, scales: list[float], order: int) -> Tensor:
        """Derivatives 0..order at the scales."""
        mean = SegmentMean(self._segments)
        for rows, swept in self._sweeps(scales, order):
            mean.add(rows, swept.derivatives.transpose(0, 1))
        stack = mean.result().transpose(0, 1)
        self._know_start(scales, stack)
        return stack

    def _know_start(self, scales: list[float], stack: Tensor) -> None:
        """Keep what was evaluated at scale 0: a search for roots asks for it with every other scale."""
        if scales[0] == 0.0 and (self._zero is None or self._zero.shape[0] < stack.shape[0]):
            self._zero = stack[..., 0]

    def at_own(self, scales_N: Tensor, order: int) -> Tensor:
        """Derivatives 0..order of each example at its own scale."""
        # With v scaled by α_n, scale 1 is α_n and the k-th derivative carries a factor α_n^k. Below `_AT_START` the
        # derivatives are those of the start to the last digit, and that factor would underflow.
        stored = self._source.stored() if order <= MOST_OWN else None
        way = self._choose(Asked(fused=order == 0, own=stored is not None))
        scales_T = scales_N[self._segments.index]
        if way == "fused":
            assert self._fused is not None
            gains_T = self._fused.own(scales_T, lambda lost: self._some(lost).at_own(scales_T[lost], 0)[0])
            return segment_mean(self._segments, gains_T).unsqueeze(0)
        if way == "fp64_kernel":
            assert stored is not None
            return self._at_own_in_kernel(stored, scales_T, scales_N, order)
        scaled = ScaledDisplacement(self._source, scales_T)
        stack = self._with(scaled, self._targets_T, self._segments).at_scales([1.0], order)[..., 0]
        if order == 0:
            return stack
        at_start = scales_N < _AT_START
        powers = torch.where(at_start, 1.0, scales_N) ** torch.arange(order + 1, device=stack.device).unsqueeze(1)
        stack = stack / powers
        if bool(at_start.any()):
            stack[1:] = torch.where(at_start, self._at_start(order)[1:], stack[1:])
        return stack

    def _at_own_in_kernel(self, stored: LogitBlock, scales_T: Tensor, scales_N: Tensor, order: int) -> Tensor:
        from loopscope.readout.affine.own_scale_kernels import derivatives_at_own

        found = derivatives_at_own(*stored, self._targets_T, scales_T, order)
        require_results_finite("the path", found)
        stack = segment_mean(self._segments, found.T).T
        if order:
            stack[1] = torch.where(scales_N == 0.0, self._at_start(1)[1], stack[1])
        return stack

    def _at_start(self, order: int) -> Tensor:
        """Derivatives 0..order at scale 0, [order+1, N], evaluated once."""
        if self._zero is None or self._zero.shape[0] <= order:
            self._zero = self.at_scales([0.0], order)[..., 0]
        return self._zero[: order + 1]

    def _initial(self) -> Tensor:
        return self._ends[1]

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """Derivatives at both ends [3, N, 2] and U(H) [N], from one sweep."""
        way = self._choose(Asked(fused=True))
        if way == "fused":
            found = self._both_ends
            return found.derivatives if not self.single else found.derivatives.unsqueeze(1), found.initial.reshape(-1)
        ends, initial = SegmentMean(self._segments), SegmentMean(self._segments)
        for rows in self._rows(way):
            swept = self._sweep(way, rows, [0.0, 1.0], 2)
            ends.add(rows, swept.derivatives.transpose(0, 1))
            initial.add(rows, swept.initial)
        return ends.result().transpose(0, 1), initial.result()

    @cached_property
    def _start(self) -> Tensor:
        return self._ends[0][..., 0]

    @cached_property
    def _full(self) -> Tensor:
        return self._ends[0][0, :, 1]

    @cached_property
    def _both_ends(self) -> Survey:
        return self.survey(2, (0.0, 1.0), 2)

    @cached_property
    def _distributions(self) -> EndpointDistributions:
        way = self._choose(Asked(fused=True))
        if way == "fused":
            return self._both_ends.distributions
        mean = SegmentMean(self._segments)
        for rows in self._rows(way):
            found = endpoint_distributions(self._source, rows, self._targets_T[rows], self._block_vocabulary)
            mean.add(rows, require_results_finite("the endpoint distributions", found.stacked()).T)
        return EndpointDistributions(*(self._drop(field) for field in mean.result().T))

    @property
    def distributions(self) -> EndpointDistributions:
        """Both output divergences, both entropies and the entropy change, averaged over reference tokens."""
        return self._distributions

    @property
    def divergence(self) -> Tensor:
        """C, the mean over reference tokens of KL(p(0)‖p(1)), from the endpoint distributions alone."""
        return self._distributions.divergence

    @property
    def decomposition(self) -> EndpointDecomposition:
        """ΔU = A − C with its residual (Prop. linear-endpoint)."""
        residual = self.gain - (self.slope - self.divergence)
        return EndpointDecomposition(self.gain, self.slope, self.divergence, residual)

    def survey(
        self, count: int = 21, moments_at: Sequence[float] = (0.0,), order: int = 2, *, spread: bool = False
    ) -> Survey:
        """φ at `count` even scales, derivatives at some of them and the endpoint distributions: see `Survey`.

        Args:
            count: evenly spaced scales from 0 to 1.
            moments_at: those among them where derivatives are wanted; none at all is fine.
            order: highest derivative, at most 4.
            spread: whether the range of the displacement is wanted, too.
        """
        even = EvenScales.of(count, moments_at)
        order = as_order(order, self.max_order)
        fused = self.in_kernels(even)
        if fused is not None:
            return self.told(even, order, fused.survey(even, order, spread=spread), spread=spread)
        way = self._choose(Asked(even=True))
        gains, derivatives, initial, distributions = (SegmentMean(self._segments) for _ in range(4))
        spread_T = torch.empty(self.tokens, dtype=torch.float64, device=self._source.device)
        for rows in self._rows(way):
            here = self._survey_rows(way, rows, even, order)
            gains.add(rows, here.gains)
            derivatives.add(rows, here.derivatives.transpose(0, 1))
            initial.add(rows, here.initial)
            assert here.distributions is not None
            distributions.add(rows, here.distributions.stacked().T)
            spread_T[rows] = here.spread
        return self._surveyed(
            even,
            gains.result(),
            derivatives.result().transpose(0, 1),
            initial.result(),
            EndpointDistributions(*distributions.result().T),
            spread_T if spread else None,
        )

    def in_kernels(self, even: EvenScales) -> FusedPath | None:
        """The fused kernels, where they answer a survey at these scales."""
        fused = self._fused
        if fused is None or not fused.takes(even):
            return None
        return fused if self._choose(Asked(even=True, fused=True)) == "fused" else None

    def told(self, even: EvenScales, order: int, found: TokenSurvey, *, spread: bool = False) -> Survey:
        """What the fused kernels found, averaged over each example's tokens; what they gave up is read another way."""
        segments, fused = self._segments, self._fused
        assert fused is not None
        again = lambda lost: self._some(lost).survey(even.count, even.with_derivatives, order, spread=spread)  # noqa: E731
        found = fused.completed(found, again)
        return self._surveyed(
            even,
            segment_mean(segments, found.gains_TK),
            segment_mean(segments, found.derivatives.transpose(0, 1)).transpose(0, 1),
            segment_mean(segments, found.initial_T),
            EndpointDistributions(*(segment_mean(segments, field) for field in found.distributions.fields())),
            found.spread_T if spread else None,
        )

    def _survey_rows(self, way: str, rows: slice, even: EvenScales, order: int) -> EvenSurvey:
        if way in EVEN_WAYS:
            found = self._even(way, rows, even.count, even.places, order, distributions=True)
        else:
            swept = self._sweep(way, rows, even.scales, 0)
            at = self._sweep(way, rows, even.with_derivatives, order).derivatives if even.places else None
            empty = swept.derivatives.new_zeros(order + 1, swept.initial.shape[0], 0)
            ends = endpoint_distributions(self._source, rows, self._targets_T[rows], self._block_vocabulary)
            found = EvenSurvey(swept.derivatives[0], empty if at is None else at, swept.initial, swept.spread, ends)
        require_results_finite("the path", found.gains)
        return found

    def _surveyed(
        self,
        even: EvenScales,
        gains: Tensor,
        derivatives: Tensor,
        initial: Tensor,
        distributions: EndpointDistributions,
        spread_T: Tensor | None,
    ) -> Survey:
        spread = None
        if spread_T is not None:
            spread = torch.zeros(self.examples, dtype=torch.float64, device=spread_T.device)
            spread.scatter_reduce_(0, self._segments.index, spread_T, "amax")
        one = self.single
        return Survey(
            scales_on(tuple(even.scales), self._source.device),
            gains[0] if one else gains,
            scales_on(tuple(even.with_derivatives), self._source.device),
            derivatives[:, 0] if one else derivatives,
            self._drop(initial),
            EndpointDistributions(*(self._drop(field) for field in distributions.fields())),
            None if spread is None else self._drop(spread),
        )

    def envelope(self, cells: int = 256) -> Envelope:
        """Bounds of −φ'' and |φ'''| that hold on the whole of each of `cells` equal cells of [0, 1].

        See `loopscope.readout.affine.envelope` for the argument.
        """
        cells = as_block("cells", cells, 256)
        if self._impl == "autograd":
            raise LoopscopeError("impl='autograd' has no fourth derivative; use impl='auto' for envelopes.")
        nodes = [k / cells for k in range(cells + 1)]
        stack, ranges, *bounds = (SegmentMean(self._segments) for _ in range(2 + len(CellBounds._fields)))
        for rows, swept in self._sweeps(nodes, 4):
            stack.add(rows, swept.derivatives.transpose(0, 1))
            ranges.add(rows, torch.stack([swept.spread**power for power in (2, 3, 4)], 1))
            for mean, field in zip(bounds, cell_bounds(swept.derivatives, swept.spread, 1.0 / cells), strict=True):
                mean.add(rows, field)
        at = torch.tensor(nodes, dtype=torch.float64, device=self._source.device)
        derivatives = Derivatives(at, stack.result().transpose(0, 1))
        self._know_start(nodes, derivatives.stack)
        cell_means = CellBounds(*(m.result() for m in bounds))
        return envelope_from_bounds(derivatives, cell_means, ranges.result(), single=self.single)
