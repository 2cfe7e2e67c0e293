"""What the paper's protocol adds from level grid on; `fp64` has its envelope and brackets.

**Endpoint replay** (Appendix "Execution and differentiation"): U(H) and U(H⁺) are read a second time from the states,
as a sweep of utilities without updates reads them, and compared with what the update's path gave.

**Exact KL correction** (Appendix "Exact KL correction for the affine readout"): ΔU, A and C of a reference solution,
each computed by itself from FP32 logits: log-softmax, gradient and divergence are FP32, sums over tokens FP64. The
residual of ΔU = A − C is then that of FP32, where `questions` holds what float64 gives after the logits.

Shapes: N reference tokens, R sequences, S positions, D hidden width, B questions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscope.measuring.groups import LOGITS
from loopscope.measuring.layout import Layout
from loopscope.measuring.reading import Reading
from loopscope.measuring.transfer import Columns
from loopscope.measuring.update import Update
from loopscope.models.walk import read
from loopscope.readout.affine.sources import full_precision_products

KL = ("kl_slope", "kl_gain", "kl_correction")


def paper_columns(update: Update, before_B: Tensor, after_B: Tensor) -> Columns:
    """The columns of every question of an update, whose utilities at both ends are given."""
    again = update.readout.readings(update.layout)
    for end, state_RSD in enumerate((update.before_RSD, update.after_RSD)):
        again.read(end, state_RSD)
    again.settle()
    gaps = [(again.found[end].utility_B - given_B).abs() for end, given_B in enumerate((before_B, after_B))]
    return {"endpoint_replay": torch.maximum(*gaps), **kl_columns(update)}


def kl_columns(update: Update) -> Columns:
    """A, ΔU and C of every question, where the readout is affine and the reference a solution."""
    if not update.readout.is_affine or update.layout.is_options:
        return {}
    # Logits, their softmax and their gradient at both ends.
    most = max(1, LOGITS // 4 // update.readout.model.vocabulary_size)
    found = torch.cat([_decomposition(group) for group in update.groups(most)])
    return dict(zip(KL, found.unbind(1), strict=True))


def _decomposition(update: Update) -> Tensor:
    """The columns in the order of `KL`, float64 [B, 3]."""
    layout = update.layout
    before_RSD, after_RSD = update.before_RSD.float(), update.after_RSD.float()
    with full_precision_products():
        with torch.enable_grad():
            start_RSD = before_RSD.requires_grad_()
            log_p_NV = _log_softmax(update, start_RSD)
            log_p_N = log_p_NV.gather(1, layout.targets_N.unsqueeze(1))[:, 0]
            [gradient_RSD] = torch.autograd.grad((log_p_N / layout.tokens_R[layout.sequence_N]).sum(), start_RSD)
        log_p_NV, log_p_N = log_p_NV.detach(), log_p_N.detach()
        after_NV = _log_softmax(update, after_RSD)
    slope_B = layout.question_sum((gradient_RSD * (after_RSD - before_RSD.detach())).sum(-1).double().sum(-1))
    gain_B = _utility(after_NV.gather(1, layout.targets_N.unsqueeze(1))[:, 0], layout) - _utility(log_p_N, layout)
    correction_B = _utility((log_p_NV.exp() * (log_p_NV - after_NV)).sum(-1), layout)
    return torch.stack([slope_B, gain_B, correction_B], 1)


def _log_softmax(update: Update, state_RSD: Tensor) -> Tensor:
    logits = read(update.readout.model, state_RSD, update.layout.positions_N2, torch.float32, update.layout.context)
    return torch.log_softmax(logits, -1)


def _utility(values_N: Tensor, layout: Layout) -> Tensor:
    """The mean over the reference tokens of each question, summed in float64."""
    return Reading.of(values_N.double(), layout).utility_B
