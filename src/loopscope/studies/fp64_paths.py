"""The FP64 path analysis of a condition as arrays: errors, regrets and bounds of the quadratic scale.

Appendices E.5 and E.9. For a concave path the optimum is known up to a bracket, so errors and regrets are
numerical intervals (not confidence intervals); for a searched path both ends are equal.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loopscope.path import (
    Interval,
    refine_bracket,
    regret_bound,
    scale_bound,
    scale_error_interval,
    taylor_scale_bound,
)
from loopscope.studies.records import Floats, Mask, Updates

FP64_COLUMNS = (
    "fp64_slope",
    "fp64_quadratic",
    "fp64_gain",
    "fp64_optimum_low",
    "fp64_optimum_high",
    "fp64_optimum_kind",
    "fp64_optimum_gain_low",
    "fp64_optimum_gain_high",
    "fp64_predicted_scale",
    "fp64_predicted_gain",
)
FP64_BOUNDS = ("fp64_M", "fp64_C_upper", "fp64_S")


@dataclass(frozen=True)
class Fp64Paths:
    """Columns of `questions` that start with `fp64_`."""

    updates: Updates

    def floats(self, name: str) -> Floats:
        """A column without its prefix."""
        return self.updates.floats(f"fp64_{name}")

    def element(self, name: str, index: int) -> Floats:
        """One element of a list column without its prefix."""
        return self.updates.element(f"fp64_{name}", index)

    @cached_property
    def slope(self) -> Floats:
        """A of the FP64 path."""
        return self.floats("slope")

    @cached_property
    def quadratic(self) -> Floats:
        """Q of the FP64 path."""
        return self.floats("quadratic")

    @property
    def primary(self) -> Mask:
        """A > 0, Q < 0 on the FP64 path itself (Appendix E.9: "computed within this run")."""
        return (self.slope > 0) & (self.quadratic < 0)

    @property
    def kind(self) -> list[str]:
        """`left`, `interior` or `right`."""
        return self.updates.frame["fp64_optimum_kind"].to_list()

    def of_kind(self, kind: str) -> Mask:
        """Questions whose optimum is of that kind."""
        return np.array([found == kind for found in self.kind], dtype=bool)

    @cached_property
    def error(self) -> Interval:
        """|α̂ − α*|, smallest and largest value that the bracket allows."""
        return scale_error_interval(
            self.floats("predicted_scale"), self.floats("optimum_low"), self.floats("optimum_high")
        )

    @cached_property
    def regret(self) -> Interval:
        """φ(α*) − φ(α̂), from the bounds of φ(α*); never below zero."""
        predicted = self.floats("predicted_gain")
        low = np.maximum(self.floats("optimum_gain_low") - predicted, 0.0)
        return Interval(low, np.maximum(self.floats("optimum_gain_high") - predicted, low))

    def bounds(self, inside: Mask) -> dict[str, Floats]:
        """M/(2κ), C̄/κ and S̄/κ of some questions with Q < 0, before the minimum with one."""
        quadratic = self.quadratic[inside]
        return {
            "global": taylor_scale_bound(self.floats("M")[inside], quadratic, capped=False),
            "integrated": scale_bound(self.floats("C_upper")[inside], quadratic, capped=False),
            "signed": scale_bound(self.floats("S")[inside], quadratic, capped=False),
        }

    def integrated_regret_bound(self, inside: Mask) -> Floats:
        """C̄²/(2κ) of some questions with Q < 0, without the refinement by the scale domain."""
        bound: Floats = regret_bound(self.floats("C_upper")[inside], self.quadratic[inside], refined=False)
        return bound

    def refined_error(self, inside: Mask) -> Interval:
        """|α̂ − α*| from brackets narrowed by endpoint slopes and local curvature bounds (interior optima only)."""
        bracket = refine_bracket(
            self.floats("optimum_low")[inside],
            self.floats("optimum_high")[inside],
            self.element("optimum_slope", 0)[inside],
            self.element("optimum_slope", 1)[inside],
            self.element("optimum_curvature", 0)[inside],
            self.element("optimum_curvature", 1)[inside],
        )
        return scale_error_interval(self.floats("predicted_scale")[inside], bracket.lower, bracket.upper)
