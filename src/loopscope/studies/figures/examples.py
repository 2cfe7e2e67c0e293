"""Which path a figure shows: the paper's lower-median rule (Appendix E.5, "Figure construction")."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from loopscope.studies.conditions import Condition
from loopscope.studies.records import GRID_SCALES, Floats, Records, Updates


@dataclass(frozen=True)
class Example:
    """One path: its stored evaluations, its coefficients and where its optimum lies."""

    condition: Condition
    example_id: str
    failures: int
    """How many finite-step failures it was chosen from."""
    scale: Floats
    gain: Floats
    slope: float
    quadratic: float
    predicted: float
    """α̂."""
    optimum: float
    """Numerical optimum estimate: the middle of the FP64 bracket, or the grid optimum."""
    fp64: bool

    def described(self) -> dict[str, Any]:
        """Plain values for the JSON beside a figure."""
        return {
            "condition": str(self.condition),
            "run": self.condition.run,
            "example_id": self.example_id,
            "chosen_from": self.failures,
            "rule": "finite-step failures by numerical optimum, then example id; lower median",
            "path": "FP64 nodes" if self.fp64 else "21-point grid",
            "predicted_scale": self.predicted,
            "optimum": self.optimum,
        }


def optimum_estimate(updates: Updates) -> Floats:
    """The numerical optimum of every question, as exactly as the run knows it."""
    if updates.has("fp64_optimum_low", "fp64_optimum_high"):
        return 0.5 * (updates.floats("fp64_optimum_low") + updates.floats("fp64_optimum_high"))
    return np.asarray(updates.optimum.alpha)


def lower_median_failure(records: Records, updates: Updates) -> Example | None:
    """The finite-step failure in the middle by optimum (the lower one of two), ids breaking ties; None without any.

    The choice does not look at the quadratic approximation.
    """
    failures = np.flatnonzero(updates.finite_step)
    if not failures.size:
        return None
    optimum = optimum_estimate(updates)
    ordered = sorted(failures.tolist(), key=lambda index: (optimum[index], updates.ids[index]))
    index = ordered[(len(ordered) - 1) // 2]
    fp64 = updates.has("fp64_slope", "fp64_quadratic", "fp64_predicted_scale")
    stored = records.path(updates.condition, updates.ids[index])
    scale, gain = stored if stored is not None else (GRID_SCALES, updates.grid_gain[index])
    prefix = "fp64_" if fp64 else ""
    return Example(
        condition=updates.condition,
        example_id=updates.ids[index],
        failures=int(failures.size),
        scale=scale,
        gain=gain,
        slope=float(updates.floats(f"{prefix}slope")[index]),
        quadratic=float(updates.floats(f"{prefix}quadratic")[index]),
        predicted=float(updates.floats("fp64_predicted_scale" if fp64 else "quadratic_scale")[index]),
        optimum=float(optimum[index]),
        fp64=stored is not None,
    )
