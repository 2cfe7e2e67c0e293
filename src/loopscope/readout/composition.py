"""Derivatives of log softmax(s(τ))_y from those of the scores s(τ), however these came about.

With p = softmax s(0), t^(k) = s^(k) − s_y^(k), and κ the joint cumulants under p of the scores' own derivatives
(the set partitions of one to four elements, each block a derivative):

    u'    = −E[t']
    u''   = −(E[t''] + κ(s', s'))
    u'''  = −(E[t'''] + 3 κ(s', s'') + κ(s', s', s'))
    u'''' = −(E[t''''] + 4 κ(s', s''') + 3 κ(s'', s'') + 6 κ(s', s', s'') + κ(s', s', s', s'))

It serves the last step of a nonlinear readout, where the scores are logits, and the joint option utility
(Eq. option-utility), where they are the options' mean log probabilities; the cumulants are the cross-option terms.

Shapes: … rows, M entries of the softmax (vocabulary or options).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def log_softmax_derivatives(scores_M: Tensor, derivatives_M: Sequence[Tensor], target_1: Tensor) -> list[Tensor]:
    """u', u'', … of u = log softmax(s)_y, one for each given derivative of s (at most four).

    Args:
        scores_M: s, float64 [..., M]; −∞ marks an entry that is not there.
        derivatives_M: s', s'', …, finite everywhere.
        target_1: y, int64 [..., 1].
    """
    d_1 = torch.argmax(scores_M, dim=-1, keepdim=True)
    w_M = torch.exp(scores_M - scores_M.gather(-1, d_1))
    p_M = w_M / w_M.sum(-1, keepdim=True)
    centred = []
    for s_M in derivatives_M:
        c_M = s_M - s_M.gather(-1, d_1)
        centred.append(c_M - (p_M * c_M).sum(-1, keepdim=True))

    def expect(*factors: Tensor) -> Tensor:
        product = p_M
        for factor in factors:
            product = product * factor
        return product.sum(-1)

    out = [-expect(s_M - s_M.gather(-1, target_1)) for s_M in derivatives_M]
    if len(out) >= 2:
        c1 = centred[0]
        variance = expect(c1, c1)
        out[1] = out[1] - variance
    if len(out) >= 3:
        c2 = centred[1]
        out[2] = out[2] - 3.0 * expect(c1, c2) - expect(c1, c1, c1)
    if len(out) >= 4:
        fourth = expect(c1, c1, c1, c1) - 3.0 * variance**2
        out[3] = out[3] - 4.0 * expect(c1, centred[2]) - 3.0 * expect(c2, c2) - 6.0 * expect(c1, c1, c2) - fourth
    return out
