"""Affine paths from what a caller has: two matrices of logits, or two stored states and a linear head.

Shapes: T reference tokens, V vocabulary entries, D hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.kernels.choice import takes_kernel
from loopscope.readout.affine.choose import WHOLE_ROWS, may_take
from loopscope.readout.affine.path import AffinePath
from loopscope.readout.affine.sources import HeadLogits, StoredLogits
from loopscope.readout.checks import (
    as_integers,
    as_readout_dtype,
    as_targets,
    require_all_finite,
    require_floating,
    require_matrix,
    require_same_shape,
)
from loopscope.readout.path import as_segments


def affine_path(
    z0: Tensor,
    v: Tensor,
    targets: Any,
    *,
    examples: Any = None,
    impl: str = "auto",
    block_tokens: int | None = None,
    block_vocabulary: int | None = None,
) -> AffinePath:
    """The utility path of affine logits z(α) = z(0) + αv.

    U is the mean over an example's reference tokens of log softmax(z(α))_y (Eq. affine-logit-utility).

    Args:
        z0: initial logits, [tokens, vocabulary]; one token may be given as a vector.
        v: their displacement, the same shape.
        targets: reference label of each token, [tokens].
        examples: which example each token belongs to, integers 0..N-1; None means one example.
        impl: a way of `loopscope.readout.affine.choose.WAYS`, or "auto", which chooses from them.
        block_tokens: tokens worked on at a time.
        block_vocabulary: vocabulary entries worked on at a time.

    >>> path = affine_path(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]]), [0])
    >>> bool(path.slope > 0), bool(path.curvature < 0), bool(path.gain > 0)
    (True, True, True)
    >>> [round(float(d), 6) for d in path.derivatives(0.5, order=2)]
    [0.186334, 0.238406, -0.419974]
    """
    if isinstance(z0, Tensor) and isinstance(v, Tensor) and z0.ndim == 1 and v.ndim == 1:
        z0, v = z0.unsqueeze(0), v.unsqueeze(0)
        targets = as_integers("targets", targets).reshape(-1)
    if impl == "fused":
        raise LoopscopeError("impl='fused' takes states and a head (affine_path_from_states), not logits; use 'auto'.")
    source = StoredLogits(z0, v)
    return AffinePath(
        source,
        as_targets(targets, source.tokens, source.vocabulary, source.device),
        as_segments(examples, source.tokens, source.device),
        impl=impl,
        block_tokens=block_tokens,
        block_vocabulary=block_vocabulary,
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
    block_vocabulary: int | None = None,
    check: bool = True,
    every_scale: bool = False,
) -> AffinePath:
    """The utility path of two stored states under a linear head, without ever holding all the logits.

    D = H⁺ − H is formed in `dtype` from the states as stored, the products H Wᵀ and D Wᵀ are taken in it a block of
    tokens and vocabulary at a time, and everything after the products is float64. The products are taken again for
    every call on the path; `survey` computes everything at once. It, both ends and `at` run in the fused kernels where
    those are available (`loopscope.readout.affine.fused`).

    Args:
        h: current states at the reference tokens' prediction positions, [tokens, hidden].
        h_plus: next states at the same positions.
        head_weight: the head's matrix, [vocabulary, hidden].
        head_bias: the head's bias, [vocabulary], or None.
        targets: reference label of each token.
        examples: which example each token belongs to; None means one example.
        dtype: arithmetic of the products, float32 (the paper's protocol) or float64.
        impl: a way of `loopscope.readout.affine.choose.WAYS`, or "auto", which chooses from them.
        block_tokens: tokens worked on at a time.
        block_vocabulary: vocabulary entries worked on at a time.
        check: look whether the numbers are finite and the labels in the vocabulary, which waits for the device;
            False is for a caller that knows, or looks at the results.
        every_scale: sum the masses of a survey at every scale, also where the fused kernels need fewer
            (`loopscope.readout.affine.fused.nodes`).
    """
    require_matrix("h", h)
    require_matrix("h_plus", h_plus)
    require_same_shape("h", h, "h_plus", h_plus)
    require_matrix("head_weight", head_weight)
    dtype = as_readout_dtype(dtype)
    if head_weight.shape[1] != h.shape[1]:
        raise LoopscopeError(
            f"head_weight has shape {tuple(head_weight.shape)} but the states have width {h.shape[1]}; "
            "give the head as [vocabulary, hidden]."
        )
    if head_weight.device != h.device:
        raise LoopscopeError(f"head_weight is on {head_weight.device} but h is on {h.device}; move them to one device.")
    if head_bias is not None:
        require_floating("head_bias", head_bias)
        if head_bias.shape != head_weight.shape[:1]:
            raise LoopscopeError(
                f"head_bias has shape {tuple(head_bias.shape)}; give one number for each of the "
                f"{head_weight.shape[0]} vocabulary entries."
            )
    if check:
        given = {"head_bias": head_bias, "h": h, "h_plus": h_plus}
        require_all_finite({name: tensor for name, tensor in given.items() if tensor is not None})
    source = HeadLogits(h, h_plus, head_weight, head_bias, dtype)
    targets_T = as_targets(targets, source.tokens, source.vocabulary, source.device) if check else targets
    fused = None
    if may_take(impl, "fused") and dtype == torch.float32 and _has_kernels(h):
        from loopscope.readout.affine.fused.path import fused_path

        fused = fused_path(h, h_plus, head_weight, head_bias, targets_T, check=check, every_scale=every_scale)
    if impl == "fused" and fused is None:
        raise LoopscopeError(
            "impl='fused' needs states and head in BF16 or FP16 on a CUDA device with Triton, read in float32; "
            "impl='auto' takes it where it can be had."
        )
    if impl not in WHOLE_ROWS and block_tokens is None:
        block_tokens, block_vocabulary = 256, block_vocabulary or 1024
    return AffinePath(
        source,
        targets_T,
        as_segments(examples, source.tokens, source.device),
        impl=impl,
        block_tokens=block_tokens,
        block_vocabulary=block_vocabulary,
        fused=fused,
    )


@torch.no_grad()
def _has_kernels(h: Tensor) -> bool:
    return takes_kernel(h.detach())
