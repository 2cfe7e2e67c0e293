"""A and Q as in the paper: a gradient and a Hessian–vector product through the readout utility (Appendix E.2).

A reference for the closed form and for Taylor mode, with the paper's second calculation along the normalised chord.
Both record the whole readout twice, so they cost far more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


class AutogradCoefficients(NamedTuple):
    """U(H), A = ⟨∇U(H), D⟩ and φ''(0) = ⟨D, ∇²U(H)[D]⟩ of each example, float64 [N] each."""

    utility: Tensor
    slope: Tensor
    curvature: Tensor


@contextmanager
def differentiable_attention() -> Iterator[None]:
    """Attention by its formula: the fused kernels can be differentiated once at most."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def autograd_coefficients(
    utility: Callable[[Tensor], Tensor], state: Tensor, displacement: Tensor, owner: Tensor, examples: int
) -> AutogradCoefficients:
    """Slope and curvature of every example's utility by a Hessian–vector product, without a Hessian.

    Args:
        utility: from a state to the utilities [N] of the examples.
        state: H, whose first axis is rows.
        displacement: D, the same shape.
        owner: the example that each row belongs to, [rows]; examples share no rows, so one product serves them all.
        examples: N.
    """

    def per_example(rows: Tensor) -> Tensor:
        sums = rows.reshape(rows.shape[0], -1).double().sum(1)
        return torch.zeros(examples, dtype=torch.float64, device=sums.device).index_add(0, owner, sums)

    with torch.enable_grad(), differentiable_attention():
        h = state.detach().requires_grad_(True)
        utilities = utility(h)
        (gradient,) = torch.autograd.grad(utilities.sum(), h, create_graph=True)
        product = (gradient * displacement).sum()
        curved = product.requires_grad  # a utility that is linear in the state leaves nothing to differentiate
        hessian_vector = torch.autograd.grad(product, h)[0] if curved else torch.zeros_like(h)
    direction = displacement.double()
    return AutogradCoefficients(
        utilities.detach().double(),
        per_example(gradient.detach().double() * direction),
        per_example(hessian_vector.detach().double() * direction),
    )


def chord_curvature(utility: Callable[[Tensor], Tensor], state: Tensor, displacement: Tensor) -> Tensor:
    """φ''(0) as ‖D‖² times the scalar second derivative of U(H + s·D/‖D‖) at s = 0.

    The paper's check of the Hessian–vector product: the same readout, another calculation.

    Args:
        utility: from a state to one number.
        state: H.
        displacement: D, the full valid-token displacement of one example.
    """
    owner = torch.zeros(state.shape[0], dtype=torch.int64, device=state.device)
    return chord_curvatures(lambda h: utility(h).reshape(1), state, displacement, owner, 1)[0]


def chord_curvatures(
    utility: Callable[[Tensor], Tensor], state: Tensor, displacement: Tensor, owner: Tensor, examples: int
) -> Tensor:
    """`chord_curvature` of many examples, float64 [N]: each along its chord, all by one second derivative.

    Examples share no rows, so the second derivative of the sum of their utilities by their scalars s_n is diagonal.
    Nothing here waits for the device, and sums are taken in an order that does not vary.

    Args:
        utility: from a state to the utilities [N] of the examples.
        state: H, whose first axis is rows.
        displacement: D, the same shape.
        owner: the example that each row belongs to, [rows].
        examples: N.
    """
    _begin_on(state.device)
    d = displacement.double()
    belongs_N = (torch.arange(examples, device=owner.device).unsqueeze(1) == owner).double()
    length_N = (belongs_N @ (d * d).reshape(d.shape[0], -1).sum(1)).sqrt()
    aside = [1] * (d.ndim - 1)
    held = torch.where(length_N > 0.0, length_N, 1.0)[owner].reshape(-1, *aside)
    direction = (d / held).to(state.dtype)
    with torch.enable_grad(), differentiable_attention():
        s_N = torch.zeros(examples, dtype=state.dtype, device=state.device, requires_grad=True)
        value = utility(state.detach() + s_N[owner].reshape(-1, *aside) * direction).sum()
        (first,) = torch.autograd.grad(value, s_N, create_graph=True)
        second = torch.autograd.grad(first.sum(), s_N)[0] if first.requires_grad else torch.zeros_like(s_N)
    result: Tensor = second.detach().double() * length_N**2
    return result


@functools.cache
def _begin_on(device: torch.device) -> None:
    """Torch differentiates in a separate thread, which gets its CUDA context from the first kernel that it launches.

    A matrix product as the first thing there finds none and warns.
    """
    if device.type == "cuda":
        with torch.enable_grad():
            one = torch.ones((), device=device, requires_grad=True)
            torch.autograd.grad(one * one, one)
