"""Tables about other paths than H + αD on [0, 1]: steps longer than the proposed one, and the renormalised path."""

from loopscope.path.grids import GRID
from loopscope.store.column_types import Column, ColumnType, Table
from loopscope.store.key_columns import IDENTITY, TRANSITION


def _number(name: str, unit: str, meaning: str) -> Column:
    return Column(name, ColumnType.FLOAT64, unit, meaning)


LONGER_STEPS = Table(
    name="longer_steps",
    per="example and transition",
    key=("row", "transition"),
    columns=(
        *IDENTITY,
        TRANSITION,
        _number("end_slope", "nats", "φ'(1): positive where a longer step would have gained more at first"),
        Column("gains", ColumnType.FLOAT64_LIST, "nats", "φ at the scales 0, 0.05, …, S, where S is `scales_to`"),
        _number("best_scale", "scale", "the best of these scales, ties to the smallest"),
        _number("best_gain", "nats", "φ there"),
        _number("quadratic_scale", "scale", "the maximiser of Aα + Qα² on [0, S]"),
        _number("quadratic_gain", "nats", "φ there, without rounding the state"),
    ),
)

RENORMALISED = Table(
    name="renormalised",
    per="example and transition",
    key=("row", "transition"),
    columns=(
        *IDENTITY,
        TRANSITION,
        _number("slope", "nats", "initial slope of the renormalised path"),
        _number("quadratic", "nats", "half its second derivative at 0"),
        Column("outcome", ColumnType.INT8, "code", "class of the update by that slope: a code of `Outcome`"),
        _number("quadratic_scale", "scale", "α̂ of that slope and curvature"),
        _number("quadratic_gain", "nats", "gain of the renormalised path at that α̂"),
        Column(
            "gains",
            ColumnType.FLOAT64_LIST,
            "nats",
            "gain of the renormalised path at the 21 scales 0, 0.05, …, 1",
            length=len(GRID),
        ),
        _number("norm_loss", "ratio", "1 − ‖u(½)‖ / r(½) of the straight path, mean over prediction positions"),
    ),
)
