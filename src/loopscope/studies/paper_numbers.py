"""Columns that a run under the paper's protocol fills with the paper's envelope, brackets, residuals and extremes."""

from __future__ import annotations

PAPER_COLUMNS = frozenset(
    {
        "kl_correction",
        *(f"fp64_{name}" for name in ("state_gap", "M", "L_D", "mu", "C_upper", "S", "safe_scale", "safe_gain")),
        *(f"fp64_optimum_{name}" for name in ("low", "high", "kind", "gain_low", "gain_high", "slope", "curvature")),
        *(f"fp64_sampled_{name}" for name in ("curvature", "convexity", "third")),
        "fp64_refined_change",
    }
)
_SINCE = 3
"""The schema version since which they are in `questions`; before, a table of their own held them."""


def bounds_of(protocol: str, level: str, schema_version: int) -> str:
    """Whose numbers those columns of a run are: `paper` or `loopscope`."""
    return "paper" if protocol == "paper" and level != "quick" and schema_version >= _SINCE else "loopscope"
