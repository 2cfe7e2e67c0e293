"""How far stored numbers can be trusted: computed a second way, and enclosed.

**Scalar Q** (Appendix "Execution and differentiation"), on the first questions of a task: the scalar second derivative
of U along the normalised chord over all valid positions, by automatic differentiation through the same readout.
Questions do not interact, so one second derivative serves several of them, each along its own chord.

**Endpoint replay** (the same appendix): U(H) and U(H⁺) are read a second time from the states, as a sweep of utilities
without updates reads them, and compared with what the update's path gave.

**Exact KL correction** (Appendix "Exact KL correction for the affine readout"): ΔU, A and C of a reference solution,
each computed by itself from FP32 logits: log-softmax, gradient and divergence are FP32, sums over tokens FP64. The
residual of ΔU = A − C is then that of FP32.

**Certificates** (with `certify`): both ends of every enclosure, and the verdicts that no rounding can overturn. They
are about the readout of the states as they are stored: given H, H⁺ and an affine head as exact numbers, U, A, Q, ΔU and
the gains along H + αD are exact functions of them, and `readout.certified` encloses those. How the model came to its
states is not certified, and neither are interventions whose states are rounded to BF16. What float64 leaves open (an
outcome, the sign of A + Q, a recovery) is computed again in Arb's balls where python-flint is installed; what is open
still stays null.

Shapes: R sequences, S positions, D hidden width, N reference tokens, B questions, V vocabulary.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.readouts import LOGITS, Reading, Readout
from loopscope.measuring.update import (
    Columns,
    HostColumn,
    Layout,
    Update,
    array,
    ordered_sum,
    pairs,
    predicted_scale,
    stacked,
)
from loopscope.models.protocol import AffineHead
from loopscope.models.walk import read
from loopscope.path import Outcome
from loopscope.readout.autograd import chord_curvatures
from loopscope.readout.blocks import full_precision_products
from loopscope.readout.certified import balls
from loopscope.readout.certified.update import QUARTER, States, enclose_update
from loopscope.readout.options import grouped_option_utility

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

_LOGITS = {"cpu": LOGITS // 4}
"""Logits at a time, where not `LOGITS`: both derivatives keep some ten float64 arrays of that size."""
_ENTRIES = {"cpu": 1 << 21}
"""Float64 numbers of an enclosure at a time, where not `_ON_GPU`: what stays near a core's cache."""
_ON_GPU = 1 << 28
_QUANTITIES = ("utility", "slope", "quadratic", "prediction", "gain", "quarter_gain", "predicted_gain")


def scalar_quadratics(readout: Readout, update: Update) -> Tensor:
    """Q = φ''(0)/2 of every question, by the scalar second derivative along its chord, float64 [B]."""
    layout, dtype = update.layout, readout.dtype
    targets_N1 = layout.targets_N.unsqueeze(1)
    sequences = torch.arange(len(layout.counts), device=layout.sequence_N.device)
    mean_RN = (sequences.unsqueeze(1) == layout.sequence_N).double() / layout.tokens_R.unsqueeze(1)

    def utility(state_RSD: Tensor) -> Tensor:
        z_NV = read(readout.model, state_RSD, layout.positions_N2, dtype, layout.context).double()
        scores_R = mean_RN @ torch.log_softmax(z_NV, -1).gather(1, targets_N1)[:, 0]
        return scores_R if layout.options is None else grouped_option_utility(scores_R, layout.options)

    state, valid = update.before_RSD.to(dtype), layout.batch.attention_mask.unsqueeze(-1)
    displacement = torch.where(valid, update.after_RSD.to(dtype) - state, torch.zeros_like(state))
    try:
        with full_precision_products():
            return 0.5 * chord_curvatures(utility, state, displacement, layout.question_R, len(layout.questions))
    except RuntimeError as error:
        if "not implemented" not in str(error):
            raise
        raise LoopscopeError(
            f"torch cannot differentiate this readout twice, so Q cannot be computed a second way ({error}); "
            f"leave the check out with {setting('scalar_checks', 0)}"
        ) from error


def scalar_check(readout: Readout, update: Update, rows: int) -> HostColumn:
    """The second calculation of Q on the first so many questions of a task, null elsewhere."""
    device = update.before_RSD.device
    questions = update.layout.questions
    chosen = [index for index, question in enumerate(questions) if question.row < rows]
    # One question at a time where the readout is more than a head.
    most = _LOGITS.get(device.type, LOGITS) // readout.model.vocabulary_size if readout.is_affine else 0
    found = tuple(scalar_quadratics(readout, group) for group in update.groups(most, chosen))

    def spread(_: Columns, *values: np.ndarray[Any, Any]) -> list[float | None]:
        known = dict(zip(chosen, (value for each in values for value in each.tolist()), strict=True))
        return [known.get(index) for index in range(len(questions))]

    return HostColumn(spread, found)


def endpoint_replay(readout: Readout, update: Update, before_B: Tensor, after_B: Tensor) -> Tensor:
    """The largest difference of the utilities at both ends from those that are read again, [B]."""
    ends = (update.before_RSD, before_B), (update.after_RSD, after_B)
    return torch.maximum(*((readout.read(state, update.layout).utility_B - given_B).abs() for state, given_B in ends))


def exact_kl(readout: Readout, update: Update) -> Tensor:
    """A, ΔU and C of every question in FP32, [B, 3]; of reference solutions under an affine readout."""
    # Logits, their softmax and their gradient at both ends.
    most = max(1, LOGITS // 4 // readout.model.vocabulary_size)
    return torch.cat([_decomposition(readout, group) for group in update.groups(most)])


def _decomposition(readout: Readout, update: Update) -> Tensor:
    layout = update.layout
    before_RSD, after_RSD = update.before_RSD.float(), update.after_RSD.float()

    def log_softmax(state_RSD: Tensor) -> Tensor:
        logits = read(readout.model, state_RSD, layout.positions_N2, torch.float32, layout.context)
        return torch.log_softmax(logits, -1)

    with full_precision_products():
        with torch.enable_grad():
            start_RSD = before_RSD.requires_grad_()
            log_p_NV = log_softmax(start_RSD)
            log_p_N = log_p_NV.gather(1, layout.targets_N.unsqueeze(1))[:, 0]
            [gradient_RSD] = torch.autograd.grad((log_p_N / layout.tokens_R[layout.sequence_N]).sum(), start_RSD)
        log_p_NV, log_p_N = log_p_NV.detach(), log_p_N.detach()
        after_NV = log_softmax(after_RSD)
    along_R = (gradient_RSD * (after_RSD - before_RSD.detach())).sum(-1).double().sum(-1)
    slope_B = ordered_sum(along_R, layout.sequences_B)
    gain_B = _utility(after_NV.gather(1, layout.targets_N.unsqueeze(1))[:, 0], layout) - _utility(log_p_N, layout)
    correction_B = _utility((log_p_NV.exp() * (log_p_NV - after_NV)).sum(-1), layout)
    return torch.stack([slope_B, gain_B, correction_B], 1)


def _utility(values_N: Tensor, layout: Layout) -> Tensor:
    """The mean over the reference tokens of each question, summed in float64."""
    return Reading.of(values_N.double(), layout).utility_B


_OPEN = -9
"""A verdict that enclosures leave open; null where it is stored."""


def verdicts(ends: dict[str, tuple[Floats, Floats]]) -> tuple[dict[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """The outcome, the sign of A + Q, whether a quarter of the step recovers a finite-step failure; and what is open.

    Whether something is recovered is only asked of finite-step failures.
    """
    gain, slope, quarter = (_signs(*ends[name]) for name in ("gain", "slope", "quarter_gain"))
    directional = (gain == -1) & (ends["slope"][1] <= 0)  # A ≤ 0 may be known where its sign is not
    failed = (gain == -1) & (slope == 1)
    codes = [Outcome.PROGRESSING, Outcome.NEUTRAL, Outcome.DIRECTIONAL_FAILURE, Outcome.FINITE_STEP_FAILURE]
    found: dict[str, np.ndarray[Any, Any]] = {
        "outcome": np.select([gain == 1, gain == 0, directional, failed], codes, _OPEN).astype(np.int8),
        "prediction_sign": _signs(*ends["prediction"]),
        "recovered": np.select([failed & (quarter == 1), failed & (ends["quarter_gain"][1] <= 0)], [1, 0], _OPEN),
    }
    is_open = np.any([(found[name] == _OPEN) & (failed | (name != "recovered")) for name in found], axis=0)
    return found, is_open


def _signs(low: Floats, high: Floats) -> np.ndarray[Any, Any]:
    return np.select([low > 0, high < 0, (low == 0) & (high == 0)], [1, -1, 0], _OPEN).astype(np.int8)


def certificate_columns(readout: Readout, update: Update) -> Columns:
    """The columns of `certificates` of every question of a batch, as many at a time as their FP64 logits fit."""
    most = max(1, LOGITS // readout.model.vocabulary_size)
    return stacked([_certified_group(readout, group) for group in update.groups(most)])


def _states(update: Update, head: AffineHead) -> States:
    layout = update.layout
    before_ND, after_ND = (layout.predicting(state) for state in (update.before_RSD, update.after_RSD))
    of_tokens = (before_ND, after_ND, *head, layout.targets_N, layout.tokens_R)
    return States(*of_tokens, layout.options, layout.sequences_B)


def _certified_group(readout: Readout, update: Update) -> Columns:
    head = readout.model.head
    assert head is not None, "only affine readouts are certified, which is checked before anything runs"
    entries = _ENTRIES.get(update.before_RSD.device.type, _ON_GPU)
    found = enclose_update(_states(update, head), predicted_scale, entries)
    enclosed = {name: getattr(found, name) for name in _QUANTITIES}
    ends = {name: (array(one.low).copy(), array(one.high).copy()) for name, one in enclosed.items()}
    scale = array(found.scale)
    _, is_open = verdicts(ends)
    how = np.where(is_open, "open", "fp64").astype(object)
    for place in np.flatnonzero(is_open).tolist() if balls.are_installed() else ():
        own = update.some([place])
        if sum(own.layout.counts) * readout.model.vocabulary_size > balls.MOST_LOGITS:
            continue
        balled = balls.enclose_in_balls(_states(own, head), (QUARTER, float(scale[place])))
        for name in _QUANTITIES:
            low, high = ends[name]
            better = balled[name]
            low[place], high[place] = max(low[place], better.low), min(high[place], better.high)
        how[place] = "balls"
    final, is_open = verdicts(ends)
    how[is_open] = "open"
    bounds = {"L_D": found.bounds.L_D, "safe_scale": found.bounds.safe_scale, "regret_high": found.bounds.regret}
    return {
        **{name: pairs(*ends[name]) for name in _QUANTITIES if name != "prediction"},
        "predicted_scale": scale,
        "C": pairs(array(found.bounds.C.low), array(found.bounds.C.high)),
        **{name: np.ma.masked_invalid(array(values)) for name, values in bounds.items()},
        **{name: np.ma.masked_array(codes, mask=codes == _OPEN) for name, codes in final.items()},
        "recovered": np.ma.masked_array(final["recovered"] == 1, mask=final["recovered"] == _OPEN),
        "arithmetic": list(how),
    }
