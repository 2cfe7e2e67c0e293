"""Certificates of one update: both ends of every enclosure, and the verdicts that no rounding can overturn.

They are about the readout of the states as they are stored: given H, H⁺ and an affine head as exact numbers, U, A, Q,
ΔU and the gains along H + αD are exact functions of them, and `readout.certified` encloses those. How the model came to
its states is not certified. Neither are the interventions whose states are rounded to BF16 (`bf16_…` of `questions`):
what is certified at α̂ and at a quarter is the gain of the exact H + αD.

What float64 leaves open (an outcome, the sign of A + Q, a recovery) is computed again in Arb's balls where python-flint
is installed; what is open still stays null.

Shapes: B questions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from loopscope.errors import LoopscopeError
from loopscope.measuring.host_copies import Columns, array, pairs, stacked
from loopscope.measuring.sequence_groups import LOGITS
from loopscope.measuring.update import Update, predicted_scale
from loopscope.models.protocol import AffineHead
from loopscope.path import Outcome
from loopscope.readout.certified import balls
from loopscope.readout.certified.intervals import Interval
from loopscope.readout.certified.tokens import Head
from loopscope.readout.certified.update import QUARTER, States, UpdateEnclosures, enclose_update

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

_ENTRIES = {"cpu": 1 << 21}
"""Float64 numbers at a time, where not `_ON_GPU`: what stays near a core's cache."""
_ON_GPU = 1 << 28
_QUANTITIES = ("utility", "slope", "quadratic", "prediction", "gain", "quarter_gain", "predicted_gain")


def require_affine(model: str, remedy: str, *, is_affine: bool) -> None:
    """Refuse to certify a readout of which nothing can be enclosed."""
    if not is_affine:
        raise LoopscopeError(f"{model} is not certified, its readout is not affine: {remedy}")


class Verdicts(NamedTuple):
    """What follows from enclosures; masked where it is open, [B] each."""

    outcome: np.ma.MaskedArray[Any, Any]
    prediction_sign: np.ma.MaskedArray[Any, Any]
    recovered: np.ma.MaskedArray[Any, Any]

    @property
    def is_open(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Where a verdict is missing; whether something is recovered is only asked of finite-step failures."""
        failed = self.outcome.filled(-1) == Outcome.FINITE_STEP_FAILURE
        missing = np.ma.getmaskarray(self.outcome) | np.ma.getmaskarray(self.prediction_sign)
        found: np.ndarray[Any, np.dtype[np.bool_]] = missing | (failed & np.ma.getmaskarray(self.recovered))
        return found


def verdicts(ends: dict[str, tuple[Floats, Floats]]) -> Verdicts:
    """The outcome, the sign of A + Q, and whether a quarter of the step recovers a finite-step failure."""
    gain, slope, quarter = (_signs(*ends[name]) for name in ("gain", "slope", "quarter_gain"))
    progressing, neutral = gain.filled(9) == 1, gain.filled(9) == 0
    harmful = gain.filled(9) == -1
    failed = harmful & (slope.filled(9) == 1)
    # A ≤ 0 may be known where its sign is not.
    directional = harmful & (ends["slope"][1] <= 0)
    outcome = np.select(
        [progressing, neutral, directional, failed],
        [Outcome.PROGRESSING, Outcome.NEUTRAL, Outcome.DIRECTIONAL_FAILURE, Outcome.FINITE_STEP_FAILURE],
    ).astype(np.int8)
    recovered, lost = failed & (quarter.filled(9) == 1), failed & (ends["quarter_gain"][1] <= 0)
    return Verdicts(
        np.ma.masked_array(outcome, mask=~(progressing | neutral | directional | failed)),
        _signs(*ends["prediction"]),
        np.ma.masked_array(recovered, mask=~(recovered | lost)),
    )


def _signs(low: Floats, high: Floats) -> np.ma.MaskedArray[Any, Any]:
    signs = np.sign(low).astype(np.int8)
    return np.ma.masked_array(signs, mask=(np.sign(low) != np.sign(high)) | ((low == 0) != (high == 0)))


def certificate_columns(head: AffineHead, update: Update) -> Columns:
    """The columns of `certificates` of every question of a batch, as many at a time as their FP64 logits fit."""
    most = max(1, LOGITS // int(head.weight_VD.shape[0]))
    certified = Head.of(head.weight_VD, head.bias_V)
    return stacked([_group_columns(group, head, certified) for group in update.groups(most)])


def _group_columns(update: Update, head: AffineHead, certified: Head) -> Columns:
    layout, (before_ND, after_ND) = update.layout, update.predicting()
    states = States(before_ND, after_ND, layout.targets_N, layout.tokens_R, layout.options, layout.sequences_B)
    entries = _ENTRIES.get(before_ND.device.type, _ON_GPU)
    found = enclose_update(states, certified, predicted_scale, entries)
    ends = {name: _ends(getattr(found, name)) for name in _QUANTITIES}
    scale = array(found.scale)
    first = verdicts(ends)
    how = np.where(first.is_open, "open", "fp64").astype(object)
    for place, balled in _in_balls(update, head, np.flatnonzero(first.is_open), scale):
        for name in _QUANTITIES:
            low, high = ends[name]
            better = getattr(balled, name)
            low[place], high[place] = max(low[place], better.low), min(high[place], better.high)
        how[place] = "balls"
    final = verdicts(ends)
    how[final.is_open] = "open"
    columns = {name: pairs(*ends[name]) for name in _QUANTITIES if name != "prediction"}
    return {**columns, "predicted_scale": scale, **_bound_columns(found), **final._asdict(), "arithmetic": list(how)}


def _bound_columns(found: UpdateEnclosures) -> Columns:
    bounds = found.bounds
    named = {"L_D": bounds.L_D, "safe_scale": bounds.safe_scale, "regret_high": bounds.regret}
    return {"C": pairs(*_ends(bounds.C)), **{name: _known(array(values)) for name, values in named.items()}}


def _in_balls(
    update: Update, head: AffineHead, chosen: np.ndarray[Any, Any], scale: Floats
) -> Iterator[tuple[int, balls.BallCertificate]]:
    """The questions that float64 leaves open, where python-flint is installed and they are not too large."""
    if not len(chosen) or not balls.are_installed():
        return
    vocabulary = int(head.weight_VD.shape[0])
    for place in chosen.tolist():
        own = update.some([place])
        layout, (before_tD, after_tD) = own.layout, own.predicting()
        if sum(layout.counts) * vocabulary > balls.MOST_LOGITS:
            continue
        yield place, balls.enclose_in_balls(
            before_tD, after_tD, head.weight_VD, head.bias_V, layout.targets_N, layout.counts,
            layout.questions[0].example.answer, (QUARTER, float(scale[place])),
        )  # fmt: skip


def _ends(interval: Interval) -> tuple[Floats, Floats]:
    return array(interval.low).copy(), array(interval.high).copy()


def _known(values: Floats) -> np.ma.MaskedArray[Any, Any]:
    """What is infinite or NaN is not known."""
    return np.ma.masked_array(values, mask=~np.isfinite(values))
