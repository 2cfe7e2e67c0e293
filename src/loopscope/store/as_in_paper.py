"""The table `as_in_paper` of runs under the paper's protocol: its own numbers where `questions` holds other ones.

Columns have the names that they have in `questions`; studies of such a run read them instead, unless told otherwise.
A cell is null where both protocols give the same number, or where there is none.
"""

from __future__ import annotations

from dataclasses import replace

from loopscope.store.column_types import Column, ColumnType, Level, Table
from loopscope.store.key_columns import IDENTITY, TRANSITION

_FP32 = {
    "kl_correction": "mean KL(p(0)‖p(1)) from the endpoint logits, in FP32; affine readouts",
    "kl_residual": "ΔU − (A − C) of `kl_gain`, `kl_slope` and `kl_correction`; affine readouts",
    "fp64_state_gap": "largest entry of |H + D − H⁺| in FP32",
}
_ENVELOPE = tuple(
    f"fp64_{name}"
    for name in (
        *("M", "L_D", "mu", "C_lower", "C_upper", "S", "optimum_low", "optimum_high", "optimum_kind"),
        *("optimum_gain_low", "optimum_gain_high", "optimum_slope_low", "optimum_slope_high", "optimum_mu"),
        *("optimum_nu", "safe_scale", "safe_gain", "evaluations"),
    )
)
_EXTREMES = tuple(
    f"fp64_{name}"
    for name in (
        *("sampled_curvature", "sampled_convexity", "sampled_third"),
        *("refined_curvature_change", "refined_third_change"),
    )
)


def as_in_paper(questions: Table) -> Table:
    """The table, from the declarations of the columns that it has in common with `questions`."""

    def common(name: str, suffix: str) -> Column:
        column = questions.column(name)
        return replace(column, nullable=True, meaning=_FP32.get(name, column.meaning.split(";")[0] + suffix))

    return Table(
        name="as_in_paper",
        per="example and transition",
        key=("row", "transition"),
        columns=(
            *IDENTITY,
            TRANSITION,
            Column(
                "endpoint_replay",
                ColumnType.FLOAT64,
                "nats",
                "largest difference of U(H) and U(H⁺) from what a sweep of utilities reads of the same states",
                Level.GRID,
            ),
            Column("kl_slope", ColumnType.FLOAT64, "nats", "A by a gradient in FP32", Level.GRID, nullable=True),
            Column("kl_gain", ColumnType.FLOAT64, "nats", "ΔU by log-softmax in FP32", Level.GRID, nullable=True),
            *(common(name, "") for name in _FP32),
            *(common(name, "; the paper's envelope and bracket, affine readouts") for name in _ENVELOPE),
            *(common(name, ", at adaptive locations; searched paths") for name in _EXTREMES),
        ),
    )
