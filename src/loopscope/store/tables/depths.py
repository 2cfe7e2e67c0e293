"""`depths`: the reference utility at every requested depth (Appendix E.1 of the paper)."""

from loopscope.store.columns import Column, ColumnType, Table
from loopscope.store.tables.keys import IDENTITY, SOURCE_ROW

DEPTHS = Table(
    name="depths",
    per="example and depth",
    key=("row", "depth"),
    columns=(
        *IDENTITY,
        SOURCE_ROW,
        Column("depth", ColumnType.INT32, "loops", "number of loops after which the state is read out"),
        Column("utility", ColumnType.FLOAT64, "nats", "reference utility U(H_t)"),
        Column(
            "option_scores",
            ColumnType.FLOAT64_LIST,
            "nats per token",
            "length-normalised score of each option; null for solutions",
            nullable=True,
        ),
        Column(
            "option_logliks",
            ColumnType.FLOAT64_LIST,
            "nats",
            "summed log likelihood of each option; null for solutions",
            nullable=True,
        ),
        Column(
            "chosen_option",
            ColumnType.INT32,
            "index",
            "option with the highest normalised score, ties to the first",
            nullable=True,
        ),
    ),
)
