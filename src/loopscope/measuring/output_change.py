"""How two softmaxes differ, token by token: KL(p‖q) and the change of entropy, from the logits of a readout's two ends.

With v the change of the logits, c = v − E_p[v] and κ = log E_p[e^c] = KL(p‖q):

    H(q) − H(p) = κ − E_p[(e^(c−κ) − 1) (log p + c)],   e^(c−κ) − 1 = e^−κ (e^c − 1) + (e^−κ − 1)

κ comes from e^c − 1 − c, whose terms are all positive, so that neither loses its digits where the two are close. On a
GPU two looks at the logits give every sum; elsewhere the path between the ends does (`readout.affine.endpoint`).

Shapes: n tokens, V vocabulary entries.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.kernels.choice import Implementation, takes_kernel
from loopscope.readout.affine.make import affine_path


class SoftmaxChange(NamedTuple):
    """Of every token, float64 [n] each."""

    divergence_n: Tensor
    entropy_n: Tensor


def softmax_change(
    z0_nV: Tensor, z1_nV: Tensor, targets_n: Tensor, impl: Implementation | None = None
) -> SoftmaxChange:
    """KL(softmax z0 ‖ softmax z1), and the entropy of the second less that of the first."""
    if not takes_kernel(z0_nV, impl, (torch.float32,)):
        z0_nV, z1_nV = z0_nV.double(), z1_nV.double()
        # Both depend on the two ends alone, so the straight line between them will do.
        ends = affine_path(z0_nV, z1_nV - z0_nV, targets_n).per_token().distributions
        return SoftmaxChange(ends.divergence, ends.entropy_change)
    from loopscope.measuring.output_kernels import change_sums

    mass_n, excess_n, moved_n, level_n = change_sums(z0_nV, z1_nV)
    kl_n = torch.log1p(excess_n / mass_n)
    gone_n = torch.exp(-kl_n) * moved_n + torch.expm1(-kl_n) * level_n
    return SoftmaxChange(kl_n, kl_n - gone_n / mass_n)
