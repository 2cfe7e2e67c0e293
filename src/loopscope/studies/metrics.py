"""What two runs are compared by: one statistic of an update's questions for every name that `--fail-if` knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loopscope.path import Outcome, endpoint_prediction
from loopscope.stats import Mean, OfSums, Ratio
from loopscope.studies.pairing import Side
from loopscope.studies.records import Floats, Updates


@dataclass(frozen=True)
class Metric:
    """A quantity of one update of one run."""

    words: str
    share: bool = True
    """Whether it is a fraction, printed in per cent; else it is in nats."""
    steps: bool = False
    """Whether it needs gains of shorter steps: level grid."""


METRICS: dict[str, Metric] = {
    "gain": Metric("mean gain of the full step, ΔU", share=False),
    "utility": Metric("mean utility after the update, U", share=False),
    "slope": Metric("mean slope, A", share=False),
    "quadratic": Metric("mean quadratic coefficient, Q", share=False),
    "harmful": Metric("harmful updates"),
    "share": Metric("finite-step failures among harmful updates"),
    "finite_step": Metric("finite-step failures among all updates"),
    "directional": Metric("directional failures among all updates"),
    "neutral": Metric("neutral updates"),
    "progressing": Metric("progressing updates"),
    "sign_slope": Metric("sign of the gain foretold by A"),
    "sign_quadratic": Metric("sign of the gain foretold by A+Q"),
    "quarter_gain": Metric("mean gain of a quarter step", share=False, steps=True),
    "quadratic_gain": Metric("mean gain of the quadratic step", share=False, steps=True),
    "quarter_recovery": Metric("finite-step failures recovered by a quarter step", steps=True),
    "quadratic_recovery": Metric("finite-step failures recovered by the quadratic step", steps=True),
    "accuracy": Metric("right option chosen after the update"),
}
"""By name, in the order in which they are printed."""
CHANGED = "changed"
"""The one that is about both runs at once: the share of questions whose outcome is another one."""
NAMES = (*METRICS, CHANGED)


def words_of(name: str) -> Metric:
    """What a name means."""
    return METRICS.get(name) or Metric("questions with another outcome")


def statistics(side: Side) -> dict[str, OfSums]:
    """Every metric that a run can fill, over the questions of one update."""
    updates = side.updates
    gain, slope, outcome = updates.gain, updates.slope, updates.outcome
    failures = updates.finite_step
    found: dict[str, OfSums] = {
        "gain": Mean(gain),
        "utility": Mean(updates.floats("utility_after")),
        "slope": Mean(slope),
        "quadratic": Mean(updates.quadratic),
        "harmful": Mean(updates.harmful),
        "share": Ratio(failures, updates.harmful),
        "finite_step": Mean(failures),
        "directional": Mean(outcome == Outcome.DIRECTIONAL_FAILURE),
        "neutral": Mean(outcome == Outcome.NEUTRAL),
        "progressing": Mean(outcome == Outcome.PROGRESSING),
        "sign_slope": Mean(np.sign(slope) == np.sign(gain)),
        "sign_quadratic": Mean(np.sign(endpoint_prediction(slope, updates.quadratic)) == np.sign(gain)),
    }
    for name, gains in _shorter(updates).items():
        found[f"{name}_gain"] = Mean(gains)
        found[f"{name}_recovery"] = Ratio(failures & (gains > 0), failures)
    if side.correct is not None:
        found["accuracy"] = Mean(side.correct)
    return {name: found[name] for name in METRICS if name in found}


def _shorter(updates: Updates) -> dict[str, Floats]:
    """Gains of shorter steps, as far as the run's level has them."""
    found = {}
    if updates.has("grid_gain"):
        found["quarter"] = updates.quarter_gain
    if updates.has("quadratic_gain"):
        found["quadratic"] = updates.floats("quadratic_gain")
    return found
