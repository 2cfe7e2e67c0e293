"""What the page opens with: of every evaluation set its leading update, and the clearest path of all.

All of it is chosen by the data. The clearest path among the finite-step failures of an update is one whose rise a and
whose fall b are both large: the largest min(a, b)² / max(a, b), with a = max φ and b = −φ(1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from loopscope.path import GRID, Outcome
from loopscope.report.evaluation_set import EvaluationSet, snippet
from loopscope.studies.conditions import Weights
from loopscope.studies.runs import finding


@dataclass(frozen=True)
class Candidate:
    """An evaluation set that the page could open with."""

    name: str
    data: EvaluationSet
    leading: int
    """The place of the leading update."""
    declines: bool
    """Whether that update clearly lowers the mean utility."""

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Trained weights before random ones, a clear decline before none, then how clear the clearest path is."""
        trained = self.data.condition.weights is not Weights.RANDOM
        return trained, self.declines, self.clearest[1]

    @cached_property
    def clearest(self) -> tuple[int, float]:
        """The question whose path is clearest, and by how many nats; without a failure, the one that moves most."""
        updates = self.data.updates[self.leading]
        if not updates.finite_step.any():
            return int(np.argmax(np.abs(updates.gain))), 0.0
        clarity = np.where(updates.finite_step, updates.clarity, -1.0)
        return int(np.argmax(clarity)), float(clarity.max())


def opening(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The path and the words at the top of the page."""
    best = max(candidates, key=lambda candidate: candidate.rank)
    row, _ = best.clearest
    updates = best.data.updates[best.leading]
    found = finding(updates)
    stored = updates.has("grid_gain")
    if updates.outcome[row] != Outcome.FINITE_STEP_FAILURE:
        why = f"Of the {found.questions} updates, the one that moves most."
    elif found.failures == 1:
        why = "The only finite-step failure of this update."
    else:
        why = f"The clearest of {found.failures} finite-step failures: its rise and its fall are both large."
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
        "title": found.title(best.data.run.manifest.model.name),
        "finding": found.sentence(),
        "meaning": found.meaning(),
        "why": why,
    }
