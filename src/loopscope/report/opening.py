"""What the page opens with: for every evaluation set the update that tells most, in a sentence; and the clearest path.

All of it is chosen by the data. The update that tells most is the earliest that clearly lowers the mean utility; where
none does, the one with most finite-step failures, then the one with most harmful updates. The clearest path among its
finite-step failures is one whose rise a and whose fall b are both large: the largest min(a, b)² / max(a, b), with
a = max φ and b = −φ(1). The set that leads has the clearest path of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from loopscope.path import GRID, Outcome
from loopscope.report import sentences
from loopscope.report.evaluation_set import EvaluationSet, snippet
from loopscope.stats import Estimate
from loopscope.studies.conditions import Weights
from loopscope.studies.records import Floats, Mask, Updates
from loopscope.studies.summary import shorter_gain


def leading_update(updates: Sequence[Updates], full: Sequence[Estimate]) -> int:
    """The place of the update that tells most.

    Args:
        updates: of one evaluation set, by transition.
        full: mean gain of the full step of each.
    """
    for place, estimate in enumerate(full):
        if sentences.clearly(estimate) < 0:
            return place
    counts = [(int(each.finite_step.sum()), int(each.harmful.sum())) for each in updates]
    return max(range(len(updates)), key=lambda place: (*counts[place], place))


def finding(updates: Updates) -> sentences.Finding:
    """What one update did, counted over its questions."""
    failures = updates.finite_step
    return sentences.Finding(
        update=updates.condition.update,
        kind=updates.condition.kind,
        questions=len(updates),
        harmful=int(updates.harmful.sum()),
        failures=int(failures.sum()),
        predicted=_count(shorter_gain(updates, "quadratic"), failures),
        quarter=_count(shorter_gain(updates, "quarter"), failures),
    )


def _count(gains: Floats | None, failures: Mask) -> int | None:
    return None if gains is None else int((gains[failures] > 0).sum())


@dataclass(frozen=True)
class Candidate:
    """An evaluation set that the page could open with."""

    name: str
    data: EvaluationSet
    leading: int
    declines: bool
    """Whether that update clearly lowers the mean utility."""

    @property
    def updates(self) -> Updates:
        """Its update that tells most."""
        return self.data.updates[self.leading]

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Trained weights before random ones, a clear decline before none, then how clear the clearest path is."""
        trained = self.data.condition.weights is not Weights.RANDOM
        return trained, self.declines, self.clearest[1]

    @cached_property
    def clearest(self) -> tuple[int, float]:
        """The question whose path is clearest, and by how many nats; without a failure, the one that moves most."""
        updates = self.updates
        if not updates.finite_step.any():
            return int(np.argmax(np.abs(updates.gain))), 0.0
        clarity = np.where(updates.finite_step, updates.clarity, -1.0)
        return int(np.argmax(clarity)), float(clarity.max())


def opening(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The path and the words at the top of the page."""
    best = max(candidates, key=lambda candidate: candidate.rank)
    row, _ = best.clearest
    updates = best.updates
    told = finding(updates)
    stored = updates.has("grid_gain")
    return {
        "set": best.name,
        "transition": updates.condition.transition,
        "id": updates.ids[row],
        "snippet": snippet(str(best.data.examples["prompt"][row])),
        "outcome": int(updates.outcome[row]),
        "slope": float(updates.slope[row]),
        "gain": float(updates.gain[row]),
        "alphas": list(GRID) if stored else [0.0, 1.0],
        "path": updates.grid_gain[row].tolist() if stored else [0.0, float(updates.gain[row])],
        "stored": stored,
        "title": told.title(best.data.run.manifest.model.name),
        "finding": told.sentence(),
        "meaning": told.meaning(),
        "why": _why(told, updates.outcome[row] == Outcome.FINITE_STEP_FAILURE),
    }


def _why(told: sentences.Finding, failure: bool) -> str:
    if not failure:
        return f"Of the {told.questions} updates, the one that moves most."
    if told.failures == 1:
        return "The only finite-step failure of this update."
    return f"The clearest of {told.failures} finite-step failures: its rise and its fall are both large."
