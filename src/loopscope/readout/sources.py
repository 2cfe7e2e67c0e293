"""Where affine logits come from: two stored matrices, or two states and a linear head, a block at a time.

Shapes: T reference tokens, V vocabulary entries, D hidden width; t and b are blocks of T and V.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from loopscope.readout._checks import require_finite, require_matrix, require_same_shape


class TargetLogits(NamedTuple):
    """The reference label's own logit and displacement, [t, 1] each."""

    z0: Tensor
    v: Tensor


class LogitBlock(NamedTuple):
    """Initial logits z(0) and displacements v of some tokens and vocabulary entries, float64 [t, b] each."""

    z0: Tensor
    v: Tensor


class LogitSource(Protocol):
    """Initial logits and their displacement for every reference token, handed out in blocks."""

    @property
    def tokens(self) -> int:
        """T, the number of reference tokens."""

    @property
    def vocabulary(self) -> int:
        """V, the number of vocabulary entries."""

    @property
    def device(self) -> torch.device:
        """Where the blocks live."""

    def target_logits(self, rows: slice, targets_t: Tensor) -> TargetLogits:
        """The target's entries, bit for bit those that `block` hands out."""

    def block(self, rows: slice, columns: slice, targets_t: Tensor, target: TargetLogits) -> LogitBlock:
        """One block, in float64; `target` is what `target_logits` gave for the same rows."""


class StoredLogits:
    """Two matrices that are already there."""

    def __init__(self, z0_TV: Tensor, v_TV: Tensor) -> None:
        require_matrix("z0", z0_TV)
        require_matrix("v", v_TV)
        require_same_shape("z0", z0_TV, "v", v_TV)
        require_finite("z0", z0_TV)
        require_finite("v", v_TV)
        self._z0_TV, self._v_TV = z0_TV.detach(), v_TV.detach()

    @property
    def tokens(self) -> int:
        return int(self._z0_TV.shape[0])

    @property
    def vocabulary(self) -> int:
        return int(self._z0_TV.shape[1])

    @property
    def device(self) -> torch.device:
        return self._z0_TV.device

    def target_logits(self, rows: slice, targets_t: Tensor) -> TargetLogits:
        y_t1 = targets_t.unsqueeze(1)
        return TargetLogits(self._z0_TV[rows].gather(1, y_t1).double(), self._v_TV[rows].gather(1, y_t1).double())

    def block(self, rows: slice, columns: slice, targets_t: Tensor, target: TargetLogits) -> LogitBlock:
        return LogitBlock(self._z0_TV[rows, columns].double(), self._v_TV[rows, columns].double())


class HeadLogits:
    """A linear head over two stored states: z(0) = H Wᵀ + b and v = (H⁺ − H) Wᵀ.

    D = H⁺ − H is formed in the readout's dtype from the states as they are stored. Both products are
    taken in that dtype with TF32 off, and handed on in float64.
    """

    def __init__(
        self, h_TD: Tensor, h_plus_TD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, dtype: torch.dtype
    ) -> None:
        self._h_TD = h_TD.detach().to(dtype)
        self._d_TD = h_plus_TD.detach().to(dtype) - self._h_TD
        self._weight_VD = weight_VD.detach()
        self._bias_V = None if bias_V is None else bias_V.detach()
        self._dtype = dtype

    @property
    def tokens(self) -> int:
        return int(self._h_TD.shape[0])

    @property
    def vocabulary(self) -> int:
        return int(self._weight_VD.shape[0])

    @property
    def device(self) -> torch.device:
        return self._h_TD.device

    def target_logits(self, rows: slice, targets_t: Tensor) -> TargetLogits:
        weight_tD = self._weight_VD[targets_t].to(self._dtype)
        z0_t = (self._h_TD[rows] * weight_tD).sum(1).double()
        if self._bias_V is not None:
            z0_t = z0_t + self._bias_V[targets_t].double()
        v_t = (self._d_TD[rows] * weight_tD).sum(1).double()
        return TargetLogits(z0_t.unsqueeze(1), v_t.unsqueeze(1))

    def block(self, rows: slice, columns: slice, targets_t: Tensor, target: TargetLogits) -> LogitBlock:
        weight_Db = self._weight_VD[columns].to(self._dtype).T
        with full_precision_products():
            z0_tb = (self._h_TD[rows] @ weight_Db).double()
            v_tb = (self._d_TD[rows] @ weight_Db).double()
        if self._bias_V is not None:
            z0_tb += self._bias_V[columns].double()
        # A matrix product and a row-wise one may round differently. The utility needs v_y − v_y to be
        # exactly zero, or a reference probability near one would drown in that rounding.
        held = torch.nonzero((targets_t >= columns.start) & (targets_t < columns.stop)).squeeze(1)
        column = targets_t[held] - columns.start
        z0_tb[held, column] = target.z0[held, 0]
        v_tb[held, column] = target.v[held, 0]
        return LogitBlock(z0_tb, v_tb)


@contextmanager
def full_precision_products() -> Iterator[None]:
    """Matrix products without TF32, whatever the process has chosen for itself."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def blocks(length: int, size: int) -> Iterator[slice]:
    """Consecutive slices that cover range(length)."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))
