"""A branch joins the residual stream, and the next branch's input is made, in one pass over the rows.

    s = x + branch_norm(branch),   x' = sum_norm(s),   next = next_norm(x')

Each norm may be absent. `normalisation` has the plain code, whose every rounding is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loopscope.kernels.language import Value, constexpr, jit, launch, tl
from loopscope.models.kernels.row_norm import normed_row, row_block, row_warps


def add_branch(
    x: Tensor, branch: Tensor, weights: Sequence[Tensor | None], eps: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The sum x' and next (x' itself where there is no norm for it); weights and eps of the three norms in order."""
    width = x.shape[-1]
    rows, branch_rows = x.contiguous(), branch.contiguous()
    added = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    following = added if weights[2] is None else torch.empty_like(added)
    launch(
        _add_branch,
        (x.numel() // width,),
        x,
        rows,
        branch_rows,
        *(rows if weight is None else weight for weight in weights),
        added,
        following,
        width,
        *eps,
        BRANCH=weights[0] is not None,
        SUM=weights[1] is not None,
        NEXT=weights[2] is not None,
        BLOCK=row_block(width),
        warps=row_warps(width),
    )
    return added, following


@jit
def _add_branch(
    x: Value,
    branch: Value,
    branch_weight: Value,
    sum_weight: Value,
    next_weight: Value,
    added: Value,
    following: Value,
    width: Value,
    branch_eps: Value,
    sum_eps: Value,
    next_eps: Value,
    BRANCH: constexpr,
    SUM: constexpr,
    NEXT: constexpr,
    BLOCK: constexpr,
) -> None:
    dtype = added.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    joining = tl.load(branch + row + columns, mask=inside, other=0.0).to(tl.float32)
    if BRANCH:
        joining = normed_row(joining, branch_weight, columns, inside, width, branch_eps).to(dtype).to(tl.float32)
    total = tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32) + joining
    total = total.to(dtype).to(tl.float32)
    if SUM:
        total = normed_row(total, sum_weight, columns, inside, width, sum_eps).to(dtype).to(tl.float32)
    tl.store(added + row + columns, total.to(dtype), mask=inside)
    if NEXT:
        normed = normed_row(total, next_weight, columns, inside, width, next_eps)
        tl.store(following + row + columns, normed.to(dtype), mask=inside)
