"""Derivatives of any readout by torch's own differentiation: Hessian–vector products, and nested forward mode.

A and Q as in the paper are a gradient and a Hessian–vector product through the readout utility (Appendix E.2): a
reference for the closed form and for Taylor mode, with the paper's second calculation along the normalised chord. Both
record the whole readout twice, so they cost far more.

Taylor mode comes first: it is the fastest, and exact. Where it has no rule for an operation, or the readout's code does
not take a series at all (compiled or scripted code, checks of types), nested forward mode takes its place for all later
derivatives of the same readout, and `Derivation.note` says why.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from loopscope.errors import LoopscopeError
from loopscope.readout.checks import is_out_of_memory, require_choice
from loopscope.readout.general import layers
from loopscope.readout.general.core import MissingRuleError


class AutogradCoefficients(NamedTuple):
    """U(H), A = ⟨∇U(H), D⟩ and φ''(0) = ⟨D, ∇²U(H)[D]⟩ of each example, float64 [N] each."""

    utility: Tensor
    slope: Tensor
    curvature: Tensor


differentiable_attention = functools.partial(sdpa_kernel, SDPBackend.MATH)
"""Attention by its formula: the fused kernels can be differentiated once at most."""


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


IMPLEMENTATIONS = ("auto", "taylor", "nested")


class Derivation:
    """The mode that is taken for one readout; paths through the same readout may share it.

    Attributes:
        impl: the requested mode; where that is "auto", "nested" once Taylor mode has given up.
        taken: the modes that have given derivatives so far.
        note: one line on why "auto" gave Taylor mode up, empty while it has not.
    """

    def __init__(self, impl: str = "auto") -> None:
        require_choice("impl", impl, IMPLEMENTATIONS)
        self.impl = impl
        self.taken: set[str] = set()
        self.note = ""

    def choose(self, taylor: Callable[[], Tensor], nested: Callable[[], Tensor]) -> Tensor:
        """The derivatives by the requested mode, or by the one that can."""
        first = ""
        if self.impl != "nested":
            try:
                found = taylor()
                self.taken.add("taylor")
                return found
            except Exception as error:
                refused = isinstance(error, LoopscopeError) and not isinstance(error, MissingRuleError)
                if self.impl == "taylor" or refused or is_out_of_memory(error):
                    raise
                first = _first_sentence(error)
        try:
            found = nested()
        except Exception as error:
            if is_out_of_memory(error) or not (first or isinstance(error, NotImplementedError | RuntimeError)):
                raise
            raise LoopscopeError(
                f"the readout cannot be differentiated: {first and first + '; '}"
                f"nested forward mode: {_first_sentence(error)}; "
                "write it with other operations (docs/your-own-model.md lists those that are known)."
            ) from error
        if first:
            self.note = f"derivatives of the readout by nested forward mode, which is slower: {first}"
        self.impl = "nested"
        self.taken.add("nested")
        return found


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MissingRuleError):
        return text.partition("; write the readout")[0]
    return f"{type(error).__name__}: {text if len(text) <= 200 else text[:200] + '…'}"


def nested_derivatives(
    function: Callable[[Tensor], Tensor], base: Tensor, direction: Tensor, order: int
) -> list[Tensor]:
    """f, f', … at τ = 0 of f(τ) = function(base + τ·direction), each one more forward differentiation of the last."""
    at = torch.zeros((), dtype=base.dtype, device=base.device)

    def deepen(level: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
        if level == 0:
            return lambda tau: (function(base + tau * direction),)
        lower = deepen(level - 1)

        def higher(tau: Tensor) -> tuple[Tensor, ...]:
            values, slopes = jvp(lower, (tau,), (torch.ones_like(at),))  # type: ignore[misc]
            return (*values, slopes[-1])

        return higher

    fused = torch.backends.mha.get_fastpath_enabled()
    # torch's fused encoder layer has no derivative.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # Some of torch's forward-mode formulas (silu's) can be differentiated again only where gradients are enabled.
        with torch.enable_grad(), differentiable_attention(), _RightNorms(), warnings.catch_warnings():
            # torch compiles its own forward-mode formulas on first use, with a function that it deprecates.
            warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
            return [derivative.detach() for derivative in deepen(order)(at)]
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


class _RightNorms(TorchFunctionMode):
    """Keeps torch's fused normalisations out of nested forward mode, which differentiates them wrongly.

    Their forward-mode formula takes the saved mean and variance for constants, so that second and higher derivatives
    come out silently wrong (seen in torch 2.13). They are written out instead, or refused.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, given = getattr(func, "__name__", ""), kwargs or {}
        if name.endswith(("group_norm", "instance_norm", "batch_norm")) or name == "native_layer_norm":
            raise LoopscopeError(
                f"torch's nested forward mode differentiates {name!r} wrongly; "
                "write the normalisation out with mean and rsqrt."
            )
        if name == "layer_norm":
            func = layers.layer_norm
            given.pop("cudnn_enable", None)
        return func(*args, **given)
