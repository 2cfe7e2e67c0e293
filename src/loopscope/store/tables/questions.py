"""`questions`: the record of one update of one example, everything but the FP64 path (Sections 3 and 4)."""

from loopscope.path.grids import CURVATURE_SCALES, GRID
from loopscope.store.columns import Column, ColumnType, Table
from loopscope.store.levels import Level
from loopscope.store.tables.fp64 import FP64
from loopscope.store.tables.keys import IDENTITY, SOURCE_ROW, TRANSITION

_EXAMPLE = (
    Column("kind", ColumnType.STRING, "", "`solution` (reference text) or `options` (multiple choice)"),
    Column("n_tokens", ColumnType.INT32, "tokens", "reference tokens, over all options together"),
    Column("n_positions", ColumnType.INT32, "tokens", "valid token positions, over all options together"),
    Column("n_options", ColumnType.INT32, "options", "number of options; null for solutions", nullable=True),
    Column("correct_option", ColumnType.INT32, "index", "index of the right option, from 0", nullable=True),
    Column("difficulty", ColumnType.STRING, "", "difficulty as published with the task", nullable=True),
    Column("batch", ColumnType.INT32, "index", "batch of the work unit in which the example ran", nullable=True),
    Column("batch_width", ColumnType.INT32, "tokens", "padded width of that batch", nullable=True),
)

_UPDATE = (
    Column("utility_before", ColumnType.FLOAT64, "nats", "U(H), before the update"),
    Column("utility_after", ColumnType.FLOAT64, "nats", "U(H⁺), after the update"),
    Column("gain", ColumnType.FLOAT64, "nats", "ΔU = φ(1), the full-step gain"),
    Column("slope", ColumnType.FLOAT64, "nats", "A = φ'(0)"),
    Column("quadratic", ColumnType.FLOAT64, "nats", "Q = φ''(0)/2"),
    Column("outcome", ColumnType.INT8, "code", "class of the update: a code of `loopscope.path.Outcome`"),
    Column("quadratic_scale", ColumnType.FLOAT64, "scale", "α̂, the maximiser of Aα + Qα² on [0, 1]"),
)


def _grid(name: str, unit: str, meaning: str, *, nullable: bool = False) -> Column:
    return Column(name, ColumnType.FLOAT64, unit, meaning, Level.GRID, nullable)


_PATH = (
    Column(
        "grid_gain",
        ColumnType.FLOAT64_LIST,
        "nats",
        "φ at the 21 scales 0, 0.05, …, 1",
        Level.GRID,
        length=len(GRID),
    ),
    Column(
        "curvature_path",
        ColumnType.FLOAT64_LIST,
        "nats",
        "φ'' at the scales 0, 0.25, 0.5, 0.75, 1",
        Level.GRID,
        length=len(CURVATURE_SCALES),
    ),
    _grid("kl_correction", "nats", "mean KL(p(0)‖p(1)) from the endpoint logits; affine readouts", nullable=True),
    _grid("kl_residual", "nats", "ΔU − (A − C) with that correction C; affine readouts", nullable=True),
    _grid("update_norm", "state units", "‖D‖, Frobenius, all valid positions of all options"),
    _grid("relative_change", "ratio", "‖D‖ / (‖H‖ + 1e-12)"),
    _grid("cosine_change", "ratio", "1 − ⟨H, H⁺⟩ / (‖H‖ ‖H⁺‖)"),
    _grid("output_kl", "nats", "KL(p(0)‖p(1)) averaged over prediction tokens, then over options"),
    _grid("entropy_change", "nats", "entropy after minus before, averaged likewise"),
    _grid("quadratic_gain", "nats", "φ(α̂), the gain of H + α̂D without rounding the state"),
    _grid("bf16_quarter_gain", "nats", "gain of H + D/4 rounded to BF16"),
    _grid("bf16_quadratic_gain", "nats", "gain of H + α̂D rounded to BF16"),
    _grid("scalar_quadratic", "nats", "Q by a scalar second derivative along the chord", nullable=True),
    Column(
        "scalar_check_passed",
        ColumnType.BOOL,
        "",
        "whether it agrees with `quadratic` to 1e-6 absolute or 1e-4 relative",
        Level.GRID,
        nullable=True,
    ),
    Column(
        "gate_continuing",
        ColumnType.INT32,
        "tokens",
        "valid positions at which the exit gate continues past t",
        Level.GRID,
        nullable=True,
    ),
)

QUESTIONS = Table(
    name="questions",
    per="example and transition",
    key=("row", "transition"),
    columns=(*IDENTITY, SOURCE_ROW, TRANSITION, *_EXAMPLE, *_UPDATE, *_PATH, *FP64),
)
