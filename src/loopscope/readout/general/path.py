"""Paths through any smooth readout (Huginn's coda and head, a user's model): Taylor mode where it can.

Shapes: T reference tokens, V vocabulary entries, N examples, K scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.readout import checks
from loopscope.readout.autograd import Derivation, nested_derivatives
from loopscope.readout.blocks import blocks, full_precision_products
from loopscope.readout.general.core import Series
from loopscope.readout.general.token_derivatives import (
    TokenChunk,
    as_headed,
    head_derivatives,
    logit_chunks,
    takes_blocks,
    token_derivatives,
)
from loopscope.readout.path import UtilityPath, as_segments, segment_mean

Readout = Callable[..., Any]
_NESTED_ELEMENTS = 1 << 24
"""Logits of nested forward mode at once, all of its numbers counted: twice as many with every order."""


class NonlinearPath(UtilityPath):
    """φ along H + αD through a readout; made by `nonlinear_path` or `nonlinear_path_from_states`."""

    def __init__(
        self,
        readout: Readout,
        state: Tensor,
        displacement: Tensor,
        targets: Any,
        positions: Tensor | None,
        examples: Any,
        impl: str | Derivation,
    ) -> None:
        self._derivation = impl if isinstance(impl, Derivation) else Derivation(impl)
        for name, tensor in (("state", state), ("displacement", displacement)):
            checks.require_floating(name, tensor)
            checks.require_finite(name, tensor)
        checks.require_same_shape("state", state, "displacement", displacement)
        if state.dtype != displacement.dtype or state.dtype not in (torch.float32, torch.float64):
            raise LoopscopeError(
                f"state is {state.dtype} and displacement {displacement.dtype}; give both in the readout's dtype, "
                "or give the two stored states to nonlinear_path_from_states."
            )
        if positions is not None:
            _require_positions(positions, state)
        self._readout, self._state, self._displacement = readout, state.detach(), displacement.detach()
        self._positions = positions
        self._whole: NonlinearPath | None = None
        self._headed, made = as_headed(readout, positions), None
        if self._headed is not None and positions is not None:
            tokens, vocabulary = len(positions), self._headed.vocabulary
        else:
            # Only running such a readout says how many tokens and entries there are; its logits give U(H) as well.
            with _plainly():
                made = list(self._blocks(self._state))
            checks.require_finite("the readout's logits", made[0].logits)
            tokens, vocabulary = made[0].logits.shape[1:]
        self._targets_T = checks.as_targets(targets, tokens, vocabulary, state.device)
        self._segments = as_segments(examples, tokens, state.device)
        self.examples, self.single = self._segments.examples, self._segments.single
        if made is not None:
            self._at_start = self._of_tokens(made, "the readout's logits")[0]

    @property
    def backends_used(self) -> set[str]:
        """How derivatives were taken so far: "taylor" or "nested"."""
        return set(self._derivation.taken)

    @property
    def note(self) -> str:
        """Why impl="auto" gave Taylor mode up, in one line; empty while it has not."""
        return self._derivation.note

    def per_token(self) -> NonlinearPath:
        """The same path with every reference token as one example."""
        twin = copy(self)
        for name in ("_start", "_full", "initial_N"):
            twin.__dict__.pop(name, None)
        twin._segments, twin._whole = self._segments.per_token(), self
        twin.examples, twin.single = twin._segments.examples, False
        return twin

    @cached_property
    def _at_start(self) -> Tensor:
        """The log probability of each target at H, float64 [T]; read once for a path and its tokens' paths."""
        return self._token_utility(self._state) if self._whole is None else self._whole._at_start

    def _blocks(self, state: Tensor | Series) -> Iterator[TokenChunk]:
        """Logit coefficients [n, t, V] of all tokens, a block at a time; n = 1 of a plain state."""
        streams = state.order + 1 if isinstance(state, Series) else 1
        for rows, logits in logit_chunks(self._readout, state, self._positions, streams):
            yield TokenChunk(rows, _coefficients(logits) if isinstance(state, Series) else logits.unsqueeze(0))

    def _token_utility(self, state: Tensor) -> Tensor:
        """The log probability of each target at a plain state, float64 [T]."""
        return self._of_tokens(self._blocks(state), "the readout's logits")[0]

    def _of_tokens(self, made: Iterable[TokenChunk], name: str) -> Tensor:
        """The log probability of each target and its derivatives, float64 [n, T]; NaN in the logits is refused."""
        with _plainly():
            found = torch.cat([token_derivatives(c_ntV, self._targets_T[rows]) for rows, c_ntV in made], 1)
        if not bool(torch.isfinite(found).all()):
            raise LoopscopeError(
                f"NaN or infinite values in {name}; check the state and the weights, or use a wider readout dtype."
            )
        return found

    @cached_property
    def initial_N(self) -> Tensor:  # noqa: N802 - its shape
        """U(H) of each example, float64."""
        return segment_mean(self._segments, self._at_start)

    def at_scales(self, scales: list[float], order: int) -> Tensor:
        """Derivatives 0..order at the scales."""
        found = [self._along(self._state + a * self._displacement, order, at_start=a == 0.0) for a in scales]
        return torch.stack(found, -1)

    def with_utility(self, scales: Sequence[float], order: int) -> Tensor:
        """U(H + αD), not the gain, and its derivatives, [order+1, N, K]: one pass at each scale gives all of them.

        The utility is not rounded as that of a plain state is, so neither is to be subtracted from the other.
        """
        found = [self._differentiated(self._state + alpha * self._displacement, order) for alpha in scales]
        return torch.stack([segment_mean(self._segments, stack_KT.T).T for stack_KT in found], -1)

    def at_own(self, scales_N: Tensor, order: int) -> Tensor:
        """Each example's rows of the state at its scale; those that share a row (tokens) are taken one by one."""
        if self.examples == 1:
            return self.at_scales([float(scales_N[0])], order)[..., 0]
        found = torch.empty(order + 1, self.examples, dtype=torch.float64, device=scales_N.device)
        for chosen in self._disjoint_sets():
            scales_R = torch.zeros(self._state.shape[0], dtype=self._state.dtype, device=self._state.device)
            member_T = chosen[self._segments.index]
            scales_R[self._rows_of_tokens()[member_T]] = scales_N[self._segments.index[member_T]].to(scales_R.dtype)
            shape = (-1, *[1] * (self._state.ndim - 1))
            base = self._state + scales_R.reshape(shape) * self._displacement
            found[:, chosen] = self._along(base, order)[:, chosen]
        # The gain at scale 0 is 0 by definition, whatever a readout's kernels make of a state computed twice.
        found[0, scales_N == 0.0] = 0.0
        return found

    def _disjoint_sets(self) -> list[Tensor]:
        """Sets of examples [N] no two of which share a row of the state."""
        row_T, index = self._rows_of_tokens(), self._segments.index
        busy: dict[int, int] = {}
        rows: dict[int, list[int]] = {}
        for pair in torch.unique(index * int(self._state.shape[0]) + row_T).tolist():
            example, row = divmod(pair, int(self._state.shape[0]))
            rows.setdefault(example, []).append(row)
        place = np.zeros(self.examples, dtype=np.int64)
        for example, its_rows in rows.items():
            place[example] = max(busy.get(row, 0) for row in its_rows)
            busy.update(dict.fromkeys(its_rows, int(place[example]) + 1))
        return [torch.from_numpy(place == k).to(index.device) for k in range(int(place.max()) + 1)]

    def _along(self, base: Tensor, order: int, *, at_start: bool = False) -> Tensor:
        """Derivatives 0..order at a state of the segment, averaged over tokens: [order+1, N].

        φ always comes from the readout of a plain state, φ(0) = 0 included: a readout may treat a series differently
        (attention by its formula instead of a fused kernel), and two roundings must not meet in one difference.
        """
        if at_start:
            gains_T = torch.zeros(self._targets_T.shape, dtype=torch.float64, device=self._targets_T.device)
        else:
            gains_T = self._token_utility(base) - self._at_start
        gains = segment_mean(self._segments, gains_T).unsqueeze(0)
        if order == 0:
            return gains
        slopes_T = self._differentiated(base, order)[1:]
        return torch.cat([gains, segment_mean(self._segments, slopes_T.T).T])

    def _differentiated(self, base: Tensor, order: int) -> Tensor:
        """The log probability of each target and its derivatives, [order+1, T]."""
        return self._derivation.choose(lambda: self._by_taylor(base, order), lambda: self._by_nesting(base, order))

    def _by_taylor(self, base: Tensor, order: int) -> Tensor:
        line = Series.line(base, self._displacement, order)
        with _plainly():
            found = self._through_head(line)
        return self._of_tokens(self._blocks(line), "the derivatives of its logits") if found is None else found

    def _through_head(self, line: Series) -> Tensor | None:
        """The same with logits of a block of the vocabulary at a time, where the head is known to be a matrix."""
        matrix = getattr(self._readout, "matrix", None)
        if self._headed is None or matrix is None or not takes_blocks(line.coefficients):
            return None
        weight_VD, hidden = matrix(), self._headed.body(line, self._positions)
        if weight_VD.dtype != torch.float32 or not isinstance(hidden, Series):
            return None
        return head_derivatives(hidden.coefficients, weight_VD, self._targets_T)

    def _by_nesting(self, base: Tensor, order: int) -> Tensor:
        size, found = len(self._targets_T), []
        if self._headed is not None:
            size = max(16, _NESTED_ELEMENTS // (self._headed.vocabulary << order))
        for rows in blocks(len(self._targets_T), size):
            utility = partial(self._plain_utility, rows=rows)
            found.append(torch.stack(nested_derivatives(utility, base, self._displacement, order)))
        return torch.cat(found, 1)

    def _plain_utility(self, state: Tensor, rows: slice = slice(None)) -> Tensor:
        positions = self._positions
        with full_precision_products():
            logits = self._readout(state) if positions is None else self._readout(state, positions[rows])
        return torch.log_softmax(logits.double(), -1).gather(1, self._targets_T[rows].unsqueeze(1))[:, 0]

    def _rows_of_tokens(self) -> Tensor:
        """The row of the state that each reference token is read from."""
        rows, index = int(self._state.shape[0]), self._segments.index
        if self._positions is not None:
            return self._positions[:, 0].to(index.device)
        if rows == index.shape[0]:
            return torch.arange(rows, device=index.device)
        raise LoopscopeError("several rows of states need positions, to know which rows are whose; give positions.")


@contextmanager
def _plainly() -> Iterator[None]:
    """Nothing recorded for gradients, no TF32."""
    with torch.no_grad(), full_precision_products():
        yield


def _coefficients(logits: Any) -> Tensor:
    if not isinstance(logits, Series):
        raise LoopscopeError(
            "the readout turned the series into a plain tensor, so its logits do not depend on the state; "
            "check that it does not detach or convert its input."
        )
    return logits.coefficients


def _require_positions(positions: Tensor, state: Tensor) -> None:
    if not isinstance(positions, Tensor) or positions.dtype != torch.int64 or positions.ndim != 2:
        raise LoopscopeError("positions must be an int64 tensor [reference tokens, 2] of (row, position).")
    if positions.shape[0] == 0:
        raise LoopscopeError("positions is empty: the reference set is empty; give at least one reference token.")
    if positions.shape[1] != 2 or state.ndim < 2:
        raise LoopscopeError("positions must be [reference tokens, 2] and state [rows, positions, hidden].")
    limit = torch.tensor(state.shape[:2], device=positions.device)
    if bool((positions < 0).any()) or bool((positions >= limit).any()):
        raise LoopscopeError(f"positions reach outside the state's {tuple(state.shape[:2])} rows and positions.")


def nonlinear_path(
    readout: Readout,
    state: Tensor,
    displacement: Tensor,
    targets: Any,
    positions: Tensor | None = None,
    *,
    examples: Any = None,
    impl: str | Derivation = "auto",
) -> NonlinearPath:
    """The utility path of a state and its displacement through any differentiable readout.

    U is the mean over an example's reference tokens of log softmax(logits)_y (Eq. reference-utility). The readout runs
    in the state's dtype with TF32 off; the last log-softmax and its derivatives are float64.

    Args:
        readout: `readout(state)`, or `readout(state, positions)` where positions are given, from a state to logits
            [reference tokens, vocabulary], in plain torch operations.
        state: H, float32 or float64.
        displacement: D in the same dtype.
        targets: reference label of each token.
        positions: int64 [tokens, 2] of (row, position), which the readout gets.
        examples: which example each token belongs to, integers 0..N-1; None means one example.
        impl: "taylor" (truncated power series), "nested" (nested forward mode, for readouts with operations that Taylor
            mode does not know), or "auto" (Taylor mode, or nested forward mode where that does not take the readout;
            `backends_used` and `note` of the path say which). Paths that share a `Derivation` find out once.

    >>> W = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    >>> state = torch.tensor([[0.5, -0.5]], dtype=torch.float64)
    >>> path = nonlinear_path(lambda h: torch.tanh(h) @ W.T, state, torch.ones_like(state), [2])
    >>> [round(float(d), 6) for d in path.derivatives(0.0, order=3)]
    [0.0, 0.54201, 0.083824, -0.587584]
    """
    return NonlinearPath(readout, state, displacement, targets, positions, examples, impl)


def nonlinear_path_from_states(
    readout: Readout,
    h: Tensor,
    h_plus: Tensor,
    targets: Any,
    positions: Tensor | None = None,
    *,
    examples: Any = None,
    dtype: torch.dtype = torch.float32,
    impl: str | Derivation = "auto",
) -> NonlinearPath:
    """`nonlinear_path` from two stored states: D = H⁺ − H is formed in `dtype` from the states as stored.

    The readout must compute in `dtype`; of a model, request it as in
    `lambda state, positions: model.readout(state, positions, dtype=torch.float64)`.
    """
    dtype = checks.as_readout_dtype(dtype)
    for name, tensor in (("h", h), ("h_plus", h_plus)):
        checks.require_floating(name, tensor)
    checks.require_same_shape("h", h, "h_plus", h_plus)
    state = h.detach().to(dtype)
    return nonlinear_path(
        readout, state, h_plus.detach().to(dtype) - state, targets, positions, examples=examples, impl=impl
    )
