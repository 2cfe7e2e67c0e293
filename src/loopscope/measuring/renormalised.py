"""The renormalised path (`--renormalise`): H + αD put back on the norm that states have.

A model that norms its state (Ouro, Huginn) never makes a state like H + αD: a chord between two points of a sphere lies
inside it. As a control, every position p is put back on an interpolated radius, so that both ends stay what they are:

    u_p(α) = h_p(α) / g,   r_p(α) = (1 − α) ‖u_p(0)‖ + α ‖u_p(1)‖,   ĥ_p(α) = f_p(α) h_p(α),   f_p = r_p / ‖u_p‖

with h_p(α) = h_p + αd_p and g the gain vector of the norm that the state comes out of (`state_gain_D` of a model; ones
where it has none). Where ‖u_p(α)‖ = 0, f_p is 1.

Derivatives at 0 in closed form, with s = ‖u‖, s' = ⟨u, d/g⟩ / s, s'' = (‖d/g‖² − s'²) / s at 0, and r' = s(1) − s(0):

    f'(0) = (r' − s') / s                          ĥ'(0)  = D + f'(0) H  =: T
    f''(0) = (2 s'² − 2 r' s') / s² − s'' / s      ĥ''(0) = 2 f'(0) D + f''(0) H  =: W

so the slope is that of the straight line from H along T, and the second derivative is that line's, plus the slope along
W. The outcome follows from this slope and ΔU, which is the same on both paths.

Shapes: N reference tokens, R sequences, S positions, D hidden width, B questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.measuring.layout import Layout
from loopscope.measuring.progress import stage
from loopscope.measuring.reading import AffineReadout, Reading
from loopscope.measuring.transfer import Columns, Later
from loopscope.measuring.update import Update, UpdatePaths, predicted_scale
from loopscope.models.protocol import LoopedModel
from loopscope.path import classify
from loopscope.path.grids import GRID


class Radii(NamedTuple):
    """What the norms along an update follow from, float64 [..., 1] each.

    Attributes:
        start: ‖u(0)‖.
        end: ‖u(1)‖.
        inner: ⟨u(0), d/g⟩.
        step: ‖d/g‖².
    """

    start: Tensor
    end: Tensor
    inner: Tensor
    step: Tensor

    @classmethod
    def of(cls, h: Tensor, d: Tensor, gain_D: Tensor | None) -> Radii:
        """Of states and displacements [..., D] in the arithmetic of the readout."""
        u, v = (_over(x.double(), gain_D) for x in (h, d))
        inner, step = (u * v).sum(-1, keepdim=True), (v * v).sum(-1, keepdim=True)
        start, end = (x.norm(dim=-1, keepdim=True) for x in (u, u + v))
        return cls(start, end, inner, step)

    def radius(self, scale: Tensor | float) -> Tensor:
        """r(α)."""
        return (1.0 - scale) * self.start + scale * self.end

    def norm(self, scale: Tensor | float) -> Tensor:
        """‖u(α)‖ of the straight path."""
        return (self.start**2 + scale * (2.0 * self.inner + scale * self.step)).clamp(min=0.0).sqrt()

    def factor(self, scale: Tensor | float) -> Tensor:
        """f(α)."""
        norm = self.norm(scale)
        return torch.where(norm > 0, self.radius(scale) / norm, 1.0)

    def derivatives(self) -> tuple[Tensor, Tensor]:
        """f'(0) and f''(0)."""
        s = torch.where(self.start > 0, self.start, 1.0)
        slope, growth = self.inner / s, self.end - self.start
        bend = (self.step - slope**2) / s
        first = (growth - slope) / s
        second = (2.0 * slope**2 - 2.0 * growth * slope) / s**2 - bend / s
        defined = self.start > 0
        return torch.where(defined, first, 0.0), torch.where(defined, second, 0.0)


def _over(x: Tensor, gain_D: Tensor | None) -> Tensor:
    """Quotient by the gain; what a gain of 0 has wiped out stays 0."""
    if gain_D is None:
        return x
    gain = gain_D.double()
    return torch.where(gain != 0, x / torch.where(gain != 0, gain, 1.0), 0.0)


def renormalised_columns(update: Update, paths: UpdatePaths) -> Columns:
    """The columns of `renormalised` of every question of a batch."""
    layout, before = update.layout, paths.before
    gain = paths.questions.at_scales([1.0], 0)[0, :, 0]
    with stage("renormalised", gain.device):
        curve = _Curve(update)
        slope, quadratic = curve.coefficients(before)
        scale = predicted_scale(slope, quadratic)
        inside = [torch.full_like(gain, alpha) for alpha in GRID[1:-1]]
        readings = curve.read([*inside, scale])
        found = torch.stack([reading.utility_B - before.utility_B for reading in readings], 1)
        # Both ends are the states themselves.
        gains_BK = torch.cat([torch.zeros_like(gain)[:, None], found[:, :-1], gain[:, None]], 1)
        at_own = torch.where(scale == 0.0, 0.0, torch.where(scale == 1.0, gain, found[:, -1]))
    return {
        "slope": slope,
        "quadratic": quadratic,
        "outcome": Later(lambda columns, gain_B: np.atleast_1d(classify(columns["slope"], gain_B)), gain),
        "quadratic_scale": scale,
        "quadratic_gain": at_own,
        "gains": gains_BK,
        "norm_loss": layout.question_mean(layout.sequence_mean(curve.norm_loss())),
    }


class _Curve:
    """The renormalised path of an update; an affine readout needs the prediction positions alone."""

    def __init__(self, update: Update) -> None:
        self._update, self._readout, self._layout = update, update.readout, update.layout
        alone = isinstance(self._readout, AffineReadout)
        before, after = update.predicting() if alone else (update.before_RSD, update.after_RSD)
        gain_D = _gain_of(self._readout.model)
        self._h = before.to(self._readout.dtype)
        self._d = after.to(self._readout.dtype) - self._h
        self._radii = Radii.of(self._h, self._d, gain_D)
        question_R = self._layout.question_R
        self._question = question_R[self._layout.sequence_N, None] if alone else question_R[:, None, None]

    def at(self, scale_B: Tensor) -> Tensor:
        """ĥ(α) at a scale for each question."""
        scale = scale_B[self._question]
        straight = self._h + scale.to(self._h.dtype) * self._d
        return self._radii.factor(scale).to(self._h.dtype) * straight

    def read(self, scales: Sequence[Tensor]) -> Iterator[Reading]:
        """Readings at some scales, each with one number per question."""
        readout, layout = self._readout, self._layout
        if not isinstance(readout, AffineReadout):
            yield from (readout.read(self.at(scale_B), layout) for scale_B in scales)
            return
        for first, second in zip(scales[::2], scales[1::2], strict=True):
            yield from readout.read_two(self.at(first), self.at(second), layout)

    def coefficients(self, before: Reading) -> tuple[Tensor, Tensor]:
        """Slope and half the second derivative at 0, [B] each."""
        first, second = (x.to(self._h.dtype) for x in self._radii.derivatives())

        def along(direction: Tensor, order: int) -> Tensor:
            line = self._readout.path_between(self._h, self._h + direction, self._layout, before)
            return line.at_scales([0.0], order)[..., 0]

        _, slope, curvature = along(self._d + first * self._h, 2)
        return slope, 0.5 * (curvature + along(2.0 * first * self._d + second * self._h, 1)[1])

    def norm_loss(self) -> Tensor:
        """1 − ‖u(½)‖ / r(½) at every prediction position."""
        radius = self._radii.radius(0.5)
        loss = torch.where(radius > 0, 1.0 - self._radii.norm(0.5) / radius, 0.0)[..., 0]
        return loss if loss.dim() == 1 else _at_predictions(loss, self._layout)


def _gain_of(model: LoopedModel) -> Tensor | None:
    """The gain of the norm that states come out of, where the model names one."""
    gain_D = getattr(model, "state_gain_D", None)
    if gain_D is not None and (not isinstance(gain_D, Tensor) or gain_D.shape != (model.hidden_size,)):
        shape = list(gain_D.shape) if isinstance(gain_D, Tensor) else type(gain_D).__name__
        raise LoopscopeError(f"{model.name}: state_gain_D must be a tensor [{model.hidden_size}], not {shape}")
    return gain_D


def _at_predictions(values_RS: Tensor, layout: Layout) -> Tensor:
    row, place = layout.positions_N2.unbind(1)
    return values_RS[row, place]
