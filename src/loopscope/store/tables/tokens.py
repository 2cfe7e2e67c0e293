"""`tokens`: the same quantities for each reference token alone, with `--tokens` (Appendix E.8)."""

from loopscope.path.grids import GRID
from loopscope.store.columns import Column, ColumnType, Table
from loopscope.store.levels import Level
from loopscope.store.tables.keys import IDENTITY, TRANSITION

TOKENS = Table(
    name="tokens",
    per="reference token and transition",
    key=("row", "transition", "option", "token"),
    columns=(
        *IDENTITY,
        TRANSITION,
        Column("option", ColumnType.INT32, "index", "option that the token belongs to; 0 for solutions"),
        Column("token", ColumnType.INT32, "index", "index among the reference tokens of its sequence, from 0"),
        Column("position", ColumnType.INT32, "index", "position in the sequence whose state predicts it"),
        Column("token_id", ColumnType.INT32, "", "vocabulary id of the reference token"),
        Column(
            "text_start",
            ColumnType.INT32,
            "characters",
            "start in the reference or option text",
            nullable=True,
        ),
        Column("text_end", ColumnType.INT32, "characters", "end in the reference or option text", nullable=True),
        Column("utility_before", ColumnType.FLOAT64, "nats", "log probability before the update"),
        Column("gain", ColumnType.FLOAT64, "nats", "ΔU of the token"),
        Column("slope", ColumnType.FLOAT64, "nats", "A of the token"),
        Column("quadratic", ColumnType.FLOAT64, "nats", "Q of the token"),
        Column("outcome", ColumnType.INT8, "code", "class of the update: a code of `loopscope.path.Outcome`"),
        Column("quadratic_scale", ColumnType.FLOAT64, "scale", "α̂ of the token"),
        Column("quarter_gain", ColumnType.FLOAT64, "nats", "gain of the token at scale 1/4"),
        Column("quadratic_gain", ColumnType.FLOAT64, "nats", "gain of the token at its own α̂"),
        Column(
            "grid_gain",
            ColumnType.FLOAT32_LIST,
            "nats",
            "φ of the token at the 21 scales 0, 0.05, …, 1",
            Level.GRID,
            nullable=True,
            length=len(GRID),
        ),
        Column(
            "exit_cdf",
            ColumnType.FLOAT64,
            "probability",
            "exit CDF of the gate through depth t",
            nullable=True,
        ),
        Column("exit_depth", ColumnType.INT32, "loops", "depth at which the gate's policy exits", nullable=True),
        Column("exit_depth_fp64", ColumnType.INT32, "loops", "the same, rebuilt in FP64", nullable=True),
        Column("continues", ColumnType.BOOL, "", "whether the policy takes this update", nullable=True),
    ),
)
