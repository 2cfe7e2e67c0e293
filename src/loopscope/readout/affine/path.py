"""Paths through an affine readout (Appendix C): logits z(α) = z(0) + αv, nothing differentiated.

`impl=` names a back end; "auto" takes the first that has no reason against a query: `kernel`, then `moments`.

Shapes: T reference tokens, V vocabulary entries, D hidden width, N examples, K scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout import checks
from loopscope.readout.affine import kernel
from loopscope.readout.affine.envelope import Envelope, envelope
from loopscope.readout.affine.kernel import KernelBackend
from loopscope.readout.affine.moments import MomentsBackend
from loopscope.readout.affine.query import (
    EXTRA,
    Backend,
    EndpointDistributions,
    HeadLogits,
    LogitSource,
    Query,
    StoredLogits,
    Survey,
    grid,
    places_on,
)
from loopscope.readout.affine.reference import AutogradBackend, ReferenceBackend
from loopscope.readout.path import Segments, UtilityPath, as_segments, segment_mean

BACKENDS: dict[str, type[Backend]] = {
    each.name: each for each in (KernelBackend, MomentsBackend, ReferenceBackend, AutogradBackend)
}
IMPLEMENTATIONS = ("auto", *BACKENDS)
_AUTO = ("kernel", "moments")


class AffinePath(UtilityPath):
    """φ along an affine logit path, per example; made by `affine_path` or `affine_path_from_states`.

    Derivatives go up to the fourth. In float64 results are exact functions of the given logits up to rounding: relative
    accuracy 1e-12 or better for φ'' and the divergences however peaked the softmax or small the displacement, and
    for φ, φ', φ''' and φ'''' relative to the sum of the absolute values of what they add up.
    The back end `kernel` has the accuracy of float32 products where it reads BF16 or FP16 states in float32.

    Attributes:
        device: that of the logits.
        tokens: T, the number of reference tokens.
        backends_used: names of the back ends that have answered so far.
    """

    def __init__(
        self,
        source: LogitSource,
        targets_T: Tensor,
        segments: Segments,
        impl: str,
        block_tokens: int | None = None,
        check: bool = True,
    ) -> None:
        checks.require_choice("impl", impl, IMPLEMENTATIONS)
        self._given: Any = (impl, block_tokens, check)
        self._source, self._targets_T, self._segments = source, targets_T, segments
        self._check = check or source.device.type == "cpu"
        self._backends = [BACKENDS[name](block_tokens) for name in (_AUTO if impl == "auto" else (impl,))]
        self.device, self.tokens = source.device, source.tokens
        self.examples, self.single = segments.examples, segments.single
        self.max_order = max(backend.max_order for backend in self._backends)
        self.backends_used: set[str] = set()

    def per_token(self) -> AffinePath:
        """The same path with every reference token an example of its own."""
        return AffinePath(self._source, self._targets_T, self._segments.per_token(), *self._given)

    def _query(
        self, scales: Sequence[float] | Tensor, places: Sequence[int], order: int, *, distributions: bool = False
    ) -> Query:
        scales = scales if isinstance(scales, Tensor) else tuple(scales)
        return Query(self._source, self._targets_T, scales, tuple(places), order, distributions)

    def backend(self, query: Query) -> Backend:
        """The first back end without reasons against a query."""
        reasons = []
        for backend in self._backends:
            against = backend.not_supported_reasons(query)
            if not against:
                self.backends_used.add(backend.name)
                return backend
            reasons += [f"impl={backend.name!r} cannot be had here: {reason}" for reason in against]
        raise LoopscopeError("; ".join(reasons) + "; impl='auto' takes what can be had.")

    def _tokens(self, query: Query) -> Tensor:
        """The answer, of every token."""
        answer = self.backend(query).evaluate(query)
        if self._check:  # on a GPU this waits for the device
            checks.require_finite("the path", answer[: -len(EXTRA)])
        return answer

    def _survey(self, query: Query, *, single: bool = False) -> Survey:
        return Survey.of(query, self._mean(self._tokens(query)), single=single)

    def _mean(self, answer: Tensor) -> Tensor:
        return segment_mean(self._segments, answer.T).T

    def at_scales(self, scales: list[float], order: int) -> Tensor:
        """Derivatives 0..order at the scales."""
        return self._survey(self._query(scales, range(len(scales)), order)).derivatives

    def at_own(self, scales_N: Tensor, order: int) -> Tensor:
        """Derivatives 0..order of each example at its own scale."""
        return self._survey(self._query(scales_N.double()[self._segments.index], (0,), order)).derivatives[..., 0]

    @cached_property
    def _ends(self) -> Survey:
        return self._survey(self._query((0.0, 1.0), (0, 1), min(2, self.max_order), distributions=True))

    @cached_property
    def initial_N(self) -> Tensor:  # noqa: N802 - its shape
        """U(H) of each example, float64 [N]."""
        return self._ends.initial

    @cached_property
    def _start(self) -> Tensor:
        return self._ends.derivatives[..., 0]

    @cached_property
    def _full(self) -> Tensor:
        return self._ends.gains[:, 1]

    @property
    def distributions(self) -> EndpointDistributions:
        """Both output divergences, both entropies and the entropy change, averaged over reference tokens."""
        return EndpointDistributions(*map(self._drop, self._ends.distributions))

    @property
    def divergence(self) -> Tensor:
        """C, the mean over reference tokens of KL(p(0)‖p(1)), without A: ΔU = A − C (Prop. linear-endpoint)."""
        return self.distributions.divergence

    def survey(self, count: int = 21, moments_at: Sequence[float] = (0.0,), order: int = 2) -> Survey:
        """φ at `count` even scales, derivatives at some of them and the endpoint distributions: see `Survey`.

        Args:
            count: evenly spaced scales from 0 to 1.
            moments_at: those among them where derivatives are wanted; none at all is fine.
            order: highest derivative, at most 4.
        """
        return self._survey(self._surveyed(count, moments_at, order), single=self.single)

    def _surveyed(self, count: int, moments_at: Sequence[float], order: int) -> Query:
        scales, order = grid(count), checks.as_order(order, self.max_order)
        return self._query(scales, places_on(count, moments_at), order, distributions=True)

    def envelope(self, cells: int = 256) -> Envelope:
        """Bounds of −φ'' and |φ'''| that hold on the whole of each of `cells` equal cells of [0, 1].

        See `loopscope.readout.affine.envelope` for the argument.
        """
        cells = checks.as_block("cells", cells)
        if self.max_order < 4:
            raise LoopscopeError("impl='autograd' has no fourth derivative; use impl='auto' for envelopes.")
        query = self._query([k / cells for k in range(cells + 1)], range(cells + 1), 4)
        answer = self._tokens(query)
        of_tokens, of_examples = (Survey.of(query, each).derivatives for each in (answer, self._mean(answer)))
        found = envelope(query.scales_K, of_tokens, of_examples, answer[-1], partial(segment_mean, self._segments))
        return found.single() if self.single else found


def surveys(paths: Sequence[AffinePath], count: int, moments_at: Sequence[float], order: int) -> list[Survey]:
    """`AffinePath.survey` of each path; every path starts in the states in which the one before it ends.

    The kernels multiply every state once.
    """
    queries = [path._surveyed(count, moments_at, order) for path in paths]
    chosen = [path.backend(query) for path, query in zip(paths, queries, strict=True)]
    kernels = all(isinstance(backend, KernelBackend) for backend in chosen)
    if kernels and all(map(kernel.in_float32, queries)) and kernel.can_follow(queries):
        answers = kernel.consecutive(queries)
    else:
        answers = [path._tokens(query) for path, query in zip(paths, queries, strict=True)]
    found = zip(paths, queries, answers, strict=True)
    return [Survey.of(query, path._mean(answer), single=path.single) for path, query, answer in found]


def affine_path(
    z0: Tensor,
    v: Tensor,
    targets: Any,
    *,
    examples: Any = None,
    impl: str = "auto",
    block_tokens: int | None = None,
) -> AffinePath:
    """The utility path of affine logits z(α) = z(0) + αv.

    U is the mean over an example's reference tokens of log softmax(z(α))_y (Eq. affine-logit-utility).

    Args:
        z0: initial logits, [tokens, vocabulary]; one token may be given as a vector.
        v: their displacement, the same shape.
        targets: reference label of each token, [tokens].
        examples: which example each token belongs to, integers 0..N-1; None means one example.
        impl: a back end ("kernel", "moments", "reference", "autograd"), or "auto".
        block_tokens: tokens worked on at a time.

    >>> path = affine_path(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]]), [0])
    >>> bool(path.slope > 0), bool(path.curvature < 0), bool(path.gain > 0)
    (True, True, True)
    >>> [round(float(d), 6) for d in path.derivatives(0.5, order=2)]
    [0.186334, 0.238406, -0.419974]
    """
    if isinstance(z0, Tensor) and isinstance(v, Tensor) and z0.ndim == 1 and v.ndim == 1:
        z0, v = z0.unsqueeze(0), v.unsqueeze(0)
        targets = checks.as_integers("targets", targets).reshape(-1)
    source = StoredLogits(z0, v)
    return AffinePath(
        source,
        checks.as_targets(targets, source.tokens, source.vocabulary, source.device),
        as_segments(examples, source.tokens, source.device),
        impl,
        None if block_tokens is None else checks.as_block("block_tokens", block_tokens),
    )


def affine_path_from_states(
    h: Tensor,
    h_plus: Tensor,
    head_weight: Tensor,
    head_bias: Tensor | None,
    targets: Any,
    *,
    examples: Any = None,
    dtype: torch.dtype = torch.float64,
    impl: str = "auto",
    block_tokens: int | None = None,
    check: bool = True,
) -> AffinePath:
    """The utility path of two stored states under a linear head, without ever holding all the logits.

    D = H⁺ − H is formed in `dtype` from the states as stored, the products H Wᵀ and D Wᵀ are taken in it a block of
    tokens and vocabulary at a time, and everything after the products is float64. The products are taken again for
    every call on the path; `survey` computes everything at once. On a GPU the back end `kernel` multiplies BF16 and
    FP16 states that are read in float32 as they are, H Wᵀ and H⁺ Wᵀ, and sums in float32.

    Args:
        h: current states at the reference tokens' prediction positions, [tokens, hidden].
        h_plus: next states at the same positions.
        head_weight: the head's matrix, [vocabulary, hidden].
        head_bias: the head's bias, [vocabulary], or None.
        targets: reference label of each token.
        examples: which example each token belongs to; None means one example.
        dtype: arithmetic of the products, float32 (the paper's protocol) or float64.
        impl: a back end ("kernel", "moments", "reference", "autograd"), or "auto".
        block_tokens: tokens worked on at a time.
        check: look whether the numbers are finite and the labels in the vocabulary, which waits for the device;
            False is for a caller that knows, or looks at the results.
    """
    checks.require_matrix("h", h)
    checks.require_matrix("h_plus", h_plus)
    checks.require_same_shape("h", h, "h_plus", h_plus)
    checks.require_matrix("head_weight", head_weight)
    dtype = checks.as_readout_dtype(dtype)
    if head_weight.shape[1] != h.shape[1]:
        raise LoopscopeError(
            f"head_weight has shape {tuple(head_weight.shape)} but the states have width {h.shape[1]}; "
            "give the head as [vocabulary, hidden]."
        )
    if head_weight.device != h.device:
        raise LoopscopeError(f"head_weight is on {head_weight.device} but h is on {h.device}; move them to one device.")
    if head_bias is not None:
        checks.require_floating("head_bias", head_bias)
        if head_bias.shape != head_weight.shape[:1]:
            raise LoopscopeError(
                f"head_bias has shape {tuple(head_bias.shape)}; give one number for each of the "
                f"{head_weight.shape[0]} vocabulary entries."
            )
    for name, tensor in (("head_bias", head_bias), ("h", h), ("h_plus", h_plus)):
        if check and tensor is not None:
            checks.require_finite(name, tensor)
    source = HeadLogits(h, h_plus, head_weight, head_bias, dtype)
    return AffinePath(
        source,
        checks.as_targets(targets, source.tokens, source.vocabulary, source.device) if check else targets,
        as_segments(examples, source.tokens, source.device),
        impl,
        None if block_tokens is None else checks.as_block("block_tokens", block_tokens),
        check,
    )
