"""Losses that shape the loop of a looped model while it is trained: its geometry beyond a depth, its rest, its gain.

An update H → H⁺ = H + D moves a question's utility U, the weighted mean of log p(y) over its tokens, along
φ(α) = U(H + αD) − U(H):

    A = φ'(0),   C = A − ΔU = −∫₀¹ (1 − s) φ''(s) ds,   ΔU = φ(1) = A − C

C is the accumulated curvature. Under an affine readout it is KL(p ‖ p⁺) ≥ 0, the mean over tokens, which knows
nothing of the references. A step k times as long has about kA and k²C, so

    C > A > 0    the right direction, the step too long: a finite-step failure
    2C > A > 0   beyond the best step along its direction, even if it gains

`geometry_loss` is the mean over questions of log(1 + max(0, margin · C − A)): nothing for an update that gains enough,
else a push towards a shorter step (through C) in a better direction (through A). The logarithm keeps updates that are
far gone, of several nats, from drowning everything else. H gets no gradient, since a worse state before the update
would make its gain larger. With a margin of 2 the loss of an update in the right direction is
zero only at its best step or before, which leaves room for questions that were not seen.

Shapes: B questions (rows), S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

MARGIN = 2.0


class Geometry(NamedTuple):
    """Of one update, by question.

    Attributes:
        slope_B: A.
        curvature_B: C, the accumulated curvature.
    """

    slope_B: Tensor
    curvature_B: Tensor

    @property
    def gain_B(self) -> Tensor:  # noqa: N802 - its shape
        """ΔU."""
        return self.slope_B - self.curvature_B


def _wide(values: Tensor) -> Tensor:
    """At least float32, whatever autocast made of it."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def question_means(values_BS: Tensor, weights_BS: Tensor) -> Tensor:
    """The mean over each question's tokens, [B]."""
    return (values_BS * weights_BS).sum(dim=1) / weights_BS.sum(dim=1).clamp_min(torch.finfo(values_BS.dtype).tiny)


def update_geometry(
    read: Callable[[Tensor], Tensor],
    state_BSD: Tensor,
    next_state_BSD: Tensor,
    targets_BS: Tensor,
    weights_BS: Tensor,
) -> Geometry:
    """A and C of an update as functions of its end, which gradients reach; its beginning is held fixed.

    A = ⟨∇U(H), D⟩ through any differentiable readout, and C is what the gain leaves of it.

    Args:
        read: from states [B, S, D] to logits [B, S, V].
        state_BSD: H.
        next_state_BSD: H⁺, one update later or several: D is the straight way between the two.
        targets_BS: the reference token after each position.
        weights_BS: how much each counts; 0 where there is no reference.
    """

    def utility(state: Tensor) -> Tensor:
        log_p = _wide(read(state)).log_softmax(dim=-1)
        return question_means(log_p.gather(-1, targets_BS[..., None])[..., 0], weights_BS)

    with torch.enable_grad():
        held = state_BSD.detach().requires_grad_()
        before = utility(held)
        (gradient,) = torch.autograd.grad(before.sum(), held)
    slope = _wide(gradient * (next_state_BSD - held.detach())).flatten(1).sum(dim=1)
    return Geometry(slope, slope - (utility(next_state_BSD) - before.detach()))


def geometry_loss(geometry: Geometry, margin: float = MARGIN) -> Tensor:
    """The mean over questions of log(1 + max(0, margin · C − A)).

    >>> round(geometry_loss(Geometry(torch.tensor([0.3, 0.3]), torch.tensor([0.1, 0.2]))).item(), 4)  # log(1.1) / 2
    0.0477
    """
    return (margin * geometry.curvature_B - geometry.slope_B).clamp_min(0.0).log1p().mean()


def fixed_point_loss(state_BSD: Tensor, next_state_BSD: Tensor, weights_BS: Tensor) -> Tensor:
    """The mean of ‖H⁺ − H‖² / ‖H⁺‖² over positions: how far from rest a loop still is."""
    moved = _wide(next_state_BSD - state_BSD).square().sum(dim=-1)
    share = moved / _wide(next_state_BSD).square().sum(dim=-1).clamp_min(1e-12)
    return (share * weights_BS).sum() / weights_BS.sum()


def jacobian_penalty(
    step: Callable[[Tensor], Tensor], state_BSD: Tensor, mask_BS: Tensor, generator: torch.Generator
) -> Tensor:
    """‖vᵀJ‖² over the number of entries, v normal: in the mean ‖J‖² (Frobenius) over them, J the step's Jacobian at H.

    Differentiable twice, so attention runs in its plain form; a compiled step cannot be.

    Args:
        step: one loop, from states to states.
        state_BSD: H.
        mask_BS: which positions are valid.
        generator: what v is drawn from, on its own device.
    """
    state = state_BSD if state_BSD.requires_grad else state_BSD.detach().requires_grad_()
    drawn = torch.randn(state.shape, generator=generator, device=generator.device).to(state)
    with sdpa_kernel(SDPBackend.MATH):
        after = step(state)
        (pulled,) = torch.autograd.grad(after, state, drawn * mask_BS[..., None], create_graph=True)
    return _wide(pulled).square().sum() / (mask_BS.sum() * state.shape[-1])
