"""Muon: momentum whose matrix is replaced by its nearest orthogonal one, for the matrices inside the blocks.

    m ← μ m + g,   U = orthogonal(g + μ m),   W ← (1 − ηλ) W − η √max(1, rows/columns) U

`orthogonal` is five steps of the quintic Newton-Schulz iteration x ← a x + (b xxᵀ + c (xxᵀ)²) x, which sends every
singular value near 1. Equal-sized matrices go through it together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonal(matrices_NRC: Tensor, steps: int = 5) -> Tensor:
    """Matrices of about the same singular vectors with all singular values between about 0.7 and 1.2."""
    x = matrices_NRC.to(torch.bfloat16 if matrices_NRC.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    result: Tensor = (x.mT if tall else x).to(matrices_NRC.dtype)
    return result


class Muon(torch.optim.Optimizer):
    """Takes (parameter, parts): a matrix made of `parts` stacked matrices is treated as that many."""

    def __init__(
        self, matrices: Iterable[tuple[nn.Parameter, int]], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        pairs = list(matrices)
        self._parts = [parts for _, parts in pairs]
        super().__init__(
            [matrix for matrix, _ in pairs], {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        (group,) = self.param_groups
        rate, momentum = group["lr"], group["momentum"]
        shapes: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for matrix, parts in zip(group["params"], self._parts, strict=True):
            if matrix.grad is None:
                continue
            state = self.state[matrix]
            if not state:
                state["momentum"] = torch.zeros_like(matrix)
            held: Tensor = state["momentum"]
            held.mul_(momentum).add_(matrix.grad)
            looking_ahead = matrix.grad.add(held, alpha=momentum)
            for target, update in zip(matrix.chunk(parts), looking_ahead.chunk(parts), strict=True):
                shapes[tuple(target.shape)].append((target, update))
        for (rows, columns), pairs in shapes.items():
            updates = orthogonal(torch.stack([update for _, update in pairs]))
            targets: list[Tensor] = [target for target, _ in pairs]
            torch._foreach_mul_(targets, 1.0 - rate * group["weight_decay"])
            torch._foreach_add_(targets, list(updates.unbind()), alpha=-rate * max(1.0, rows / columns) ** 0.5)
