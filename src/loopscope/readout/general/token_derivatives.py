"""Derivatives of log softmax(s(τ))_y from those of the scores s(τ), however these came about.

With p = softmax s(0), t^(k) = s^(k) − s_y^(k), and κ the joint cumulants under p of the derivatives of the scores
(the set partitions of one to four elements, each block a derivative):

    u'    = −E[t']
    u''   = −(E[t''] + κ(s', s'))
    u'''  = −(E[t'''] + 3 κ(s', s'') + κ(s', s', s'))
    u'''' = −(E[t''''] + 4 κ(s', s''') + 3 κ(s'', s'') + 6 κ(s', s', s'') + κ(s', s', s', s'))

It serves the last step of a nonlinear readout, where the scores are logits, and the joint option utility
(Eq. option-utility), where they are the options' mean log probabilities; the cumulants are the cross-option terms.

`logit_chunks` gives the logits a chunk of tokens at a time, so that a readout whose last map is an affine head never
makes them all at once, and `token_derivatives` does the rest from the Taylor coefficients of a chunk, in float64. On a
CPU `head_derivatives` goes further: with the head's matrix at hand, logits exist one block of the vocabulary at a time.

Shapes: … rows, M entries of the softmax (vocabulary or options), n = order + 1 coefficients, T reference tokens, t a
chunk of them, V vocabulary entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.kernels.choice import Implementation, chosen, is_differentiating, takes_kernel
from loopscope.readout.blocks import blocks, in_parallel
from loopscope.readout.softmax import Softmax


def log_softmax_derivatives(softmax: Softmax, derivatives_M: Sequence[Tensor], target_n: Tensor) -> list[Tensor]:
    """u', u'', … of u = log softmax(s)_y, one for each given derivative of s (at most four).

    Args:
        softmax: that of s, float64 [n, M].
        derivatives_M: s', s'', …, finite everywhere.
        target_n: y.
    """
    p_M, d_1, target_1, centred = softmax.p, softmax.top_id_n.unsqueeze(1), target_n.unsqueeze(1), []
    for s_M in derivatives_M[:-1]:  # the highest enters by its mean alone
        c_M = s_M - s_M.gather(-1, d_1)
        centred.append(c_M - (p_M * c_M).sum(-1, keepdim=True))
    out = [-(p_M * (s_M - s_M.gather(-1, target_1))).sum(-1) for s_M in derivatives_M]
    if len(out) >= 2:
        c1 = centred[0]
        p1_M = p_M * c1
        p11_M = p1_M * c1
        variance = p11_M.sum(-1)
        out[1] = out[1] - variance
    if len(out) >= 3:
        c2 = centred[1]
        p111_M = p11_M * c1
        out[2] = out[2] - 3.0 * (p1_M * c2).sum(-1) - p111_M.sum(-1)
    if len(out) >= 4:
        fourth = (p111_M * c1).sum(-1) - 3.0 * variance**2
        mixed = 3.0 * (p_M * c2 * c2).sum(-1), 6.0 * (p11_M * c2).sum(-1)
        out[3] = out[3] - 4.0 * (p1_M * centred[2]).sum(-1) - mixed[0] - mixed[1] - fourth
    return out


_ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 26}  # of logits at once, all Taylor coefficients counted


@runtime_checkable
class HeadedReadout(Protocol):
    """A readout as two maps, `head(body(state, positions))`, with an affine head (a model's `body_and_head`).

    Attributes:
        body: from a state and positions to what the head reads, [T, D].
        head: from some rows of that to their logits, [t, D] → [t, V].
        vocabulary: V.
    """

    body: Callable[..., Any]
    head: Callable[..., Any]
    vocabulary: int


def as_headed(readout: Any, positions: Any) -> HeadedReadout | None:
    """The readout where it comes as body and head and is asked at some positions."""
    return readout if isinstance(readout, HeadedReadout) and positions is not None else None


class TokenChunk(NamedTuple):
    """Logits [t, V] of the tokens `rows`, a tensor or a series."""

    rows: slice
    logits: Any


def logit_chunks(readout: Callable[..., Any], state: Any, positions: Any, streams: int) -> Iterator[TokenChunk]:
    """The logits of every token; `streams` is how many coefficients a series has, 1 for a tensor."""
    headed = as_headed(readout, positions)
    if headed is None:
        logits = readout(state) if positions is None else readout(state, positions)
        if len(logits.shape) != 2:
            raise LoopscopeError(
                f"the readout gave logits of shape {tuple(logits.shape)}; it must give [reference tokens, vocabulary]."
            )
        if logits.shape[0] == 0:
            raise LoopscopeError("the reference set is empty; give at least one reference token.")
        yield TokenChunk(slice(0, int(logits.shape[0])), logits)
        return
    hidden = headed.body(state, positions)
    elements = _ELEMENTS.get(torch.device(hidden.device).type, _ELEMENTS["cpu"])
    size = max(16, elements // (streams * headed.vocabulary))
    for rows in blocks(int(hidden.shape[0]), size):
        yield TokenChunk(rows, headed.head(hidden[rows]))


_COEFFICIENT_ELEMENTS = {"cpu": 1 << 16, "cuda": 1 << 23}  # of a coefficient in float64: some such stay in a cache
_KERNEL_ORDER = 3


def token_derivatives(c_ntV: Tensor, targets_t: Tensor, impl: Implementation | None = None) -> Tensor:
    """The log probability u = log softmax(z)_y and u', u'', … along z(τ) = Σ_k c_k τ^k at τ = 0, float64 [n, t].

    Args:
        c_ntV: coefficients, order 4 at most; NaN and +∞ come out as NaN, a logit of −∞ has probability 0.
        targets_t: y, int64.
        impl: one pass over the logits by a kernel, or plain torch; see `loopscope.kernels.choice`.
    """
    if c_ntV.shape[0] <= _KERNEL_ORDER + 1 and takes_kernel(c_ntV, impl, (torch.float32, torch.float64)):
        from loopscope.readout.general.kernels import logit_sums

        likeliest_t, sums_7t = logit_sums(c_ntV)
        ends = (targets_t[None, :, None], likeliest_t[None, :, None])
        y_nt, d_nt = (c_ntV.gather(2, at.expand(c_ntV.shape[0], -1, 1)).double()[:, :, 0] for at in ends)
        return _from_sums(y_nt - d_nt, sums_7t)
    if takes_blocks(c_ntV, impl):
        y_nt1 = targets_t[None, :, None].expand(c_ntV.shape[0], -1, 1)
        about_nt1 = c_ntV.gather(2, y_nt1).double()
        found = _in_blocks(lambda rows, columns: c_ntV[:, rows, columns], c_ntV.shape[2], targets_t, about_nt1)
        if found is not None:
            return found
    size = _COEFFICIENT_ELEMENTS.get(c_ntV.device.type, _COEFFICIENT_ELEMENTS["cpu"])
    chunks = []
    for rows in blocks(c_ntV.shape[1], max(1, size // c_ntV.shape[2])):
        z = [c_ntV[k, rows].double() for k in range(c_ntV.shape[0])]
        z[2:] = [z_tV * math.factorial(k) for k, z_tV in enumerate(z[2:], 2)]
        softmax = Softmax(z[0])
        slopes = log_softmax_derivatives(softmax, z[1:], targets_t[rows])
        chunks.append(torch.stack([softmax.log_probability(targets_t[rows]), *slopes]))
    return torch.cat(chunks, 1)


_TOKENS, _ENTRIES, _BLOCK = 64, 8192, 512
"""Tokens and entries that a core takes at a time, and entries of a block: what is made of one stays in its cache."""


def takes_blocks(c: Tensor, impl: Implementation | None = None) -> bool:
    """Whether these coefficients are summed a block of the vocabulary at a time: float32, on a CPU."""
    plain = type(c) is Tensor and c.dtype == torch.float32 and c.device.type == "cpu" and not is_differentiating()
    return plain and c.shape[0] <= _KERNEL_ORDER + 1 and chosen(impl) != "reference"


def head_derivatives(c_nTD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> Tensor | None:
    """`token_derivatives` of c_nTD Wᵀ with logits of one block at a time; None where it has to be done another way."""
    about_nT1 = (c_nTD.double() * weight_VD[targets_T].double()).sum(-1, keepdim=True)

    def logits(rows: slice, columns: slice) -> Tensor:
        c_ntD = c_nTD[:, rows]
        return (c_ntD.reshape(-1, c_ntD.shape[2]) @ weight_VD[columns].T).reshape(*c_ntD.shape[:2], -1)

    return _in_blocks(logits, weight_VD.shape[0], targets_T, about_nT1)


def _in_blocks(
    logits: Callable[[slice, slice], Tensor], vocabulary: int, targets_T: Tensor, about_nT1: Tensor
) -> Tensor | None:
    """The same from float32 logits [n, t, b] of some tokens and entries, side by side on all cores.

    Sums and their terms are float64 and seen from the reference y, whose coefficients are `about_nT1`: what cancels in
    them is far below the rounding of float32 logits. None where a logit lies so far above the reference's that weights
    overflow, or is not finite.
    """
    chunks, parts = list(blocks(targets_T.shape[0], _TOKENS)), list(blocks(vocabulary, _ENTRIES))
    found = in_parallel(
        [partial(_sums_of, logits, rows, part, targets_T, about_nT1) for rows in chunks for part in parts]
    )
    of_chunks = [torch.stack(found[k : k + len(parts)]).sum(0) for k in range(0, len(found), len(parts))]
    out = _from_sums(torch.zeros_like(about_nT1[:, :, 0]), torch.cat(of_chunks, 1))
    return out if bool(out.isfinite().all()) else None


@torch.no_grad()  # each thread has its settings
def _sums_of(
    logits: Callable[[slice, slice], Tensor], rows: slice, part: slice, targets_T: Tensor, about_nT1: Tensor
) -> Tensor:
    """The sums of `_from_sums` for some tokens over a part of the vocabulary."""
    targets_t, about_nt1, orders = targets_T[rows], about_nT1[:, rows], about_nT1.shape[0] - 1
    sums_7t = torch.zeros(7, targets_t.shape[0], dtype=torch.float64)
    for start in range(part.start, part.stop, _BLOCK):
        columns = slice(start, min(start + _BLOCK, part.stop))
        x_ntb = logits(rows, columns) - about_nt1
        w_tb = x_ntb[0].exp_()
        here = ((targets_t >= columns.start) & (targets_t < columns.stop)).nonzero()[:, 0]
        w_tb[here, targets_t[here] - start] = 0.0
        sums_7t[0] += w_tb.sum(-1)
        weighed = w_tb * x_ntb[1:]
        sums_7t[1 : 1 + orders] += weighed.sum(-1)
        if orders >= 2:
            products = weighed[0] * x_ntb[1:3]
            sums_7t[4:6] += products.sum(-1)
            if orders >= 3:
                sums_7t[6] += products[0].mul_(x_ntb[1]).sum(-1)
    return sums_7t


def _from_sums(gap_nt: Tensor, sums_7t: Tensor) -> Tensor:
    """The same from sums over the vocabulary, everything seen from one entry d, the likeliest or the reference itself.

    With weights e^{z_a − z_d} and x_k = z_k − z_k,d: Σ_{a≠d} 1, then Σ x₁, x₂, x₃, x₁², x₁x₂, x₁³, of coefficients; and
    by how much those of the reference are above those of d.
    """
    n = gap_nt.shape[0]
    out = [gap_nt[0] - torch.log1p(sums_7t[0])]
    m1, m2, m3, m11, m12, m111 = sums_7t[1:] / (1.0 + sums_7t[0])
    if n >= 2:
        out.append(gap_nt[1] - m1)
    if n >= 3:
        variance = m11 - m1 * m1
        out.append(2.0 * (gap_nt[2] - m2) - variance)
    if n >= 4:
        skew = m111 - 3.0 * m1 * m11 + 2.0 * m1**3
        out.append(6.0 * (gap_nt[3] - m3) - 6.0 * (m12 - m1 * m2) - skew)
    return torch.stack(out)
