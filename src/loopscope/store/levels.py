"""How much a run measures: three named levels, each holding all columns of the one before it."""

from enum import StrEnum


class Level(StrEnum):
    """What a pass computes for every question and transition.

    The order of declaration is the order of effort; a column that belongs to a level is filled at that level
    and at every later one.

    >>> Level.FULL.includes(Level.GRID), Level.QUICK.includes(Level.GRID)
    (True, False)
    """

    QUICK = "quick"
    """U at both ends, A, Q, ΔU, the outcome and the quadratic scale (Sections 3.1 and 3.3)."""
    GRID = "grid"
    """Also the 21-point grid, curvature at five points, the KL correction, the state and output
    diagnostics and the rounded interventions (Appendices E.2 to E.4)."""
    FULL = "full"
    """Also the FP64 path analysis: envelopes, partition sums, refined optimum, safe scale."""

    def includes(self, other: "Level") -> bool:
        """Whether a run at this level fills the columns of `other`."""
        order = list(Level)
        return order.index(other) <= order.index(self)
