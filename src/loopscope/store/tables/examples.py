"""`examples`: what was asked, as text, so that a run can be read without its data set."""

from loopscope.store.columns import Column, ColumnType, Table
from loopscope.store.tables.keys import IDENTITY, SOURCE_ROW

EXAMPLES = Table(
    name="examples",
    per="example",
    key=("row",),
    columns=(
        *IDENTITY,
        SOURCE_ROW,
        Column("kind", ColumnType.STRING, "", "`solution` (reference text) or `options` (multiple choice)"),
        Column("prompt", ColumnType.STRING, "", "text before the reference or before the options"),
        Column("reference", ColumnType.STRING, "", "reference solution; null for options", nullable=True),
        Column("options", ColumnType.STRING_LIST, "", "option texts; null for solutions", nullable=True),
        Column("correct_option", ColumnType.INT32, "index", "index of the right option, from 0", nullable=True),
        Column("n_tokens", ColumnType.INT32, "tokens", "reference tokens, over all options together"),
        Column("n_positions", ColumnType.INT32, "tokens", "valid token positions, over all options together"),
        Column("option_tokens", ColumnType.INT32_LIST, "tokens", "tokens scored in each option", nullable=True),
        Column("difficulty", ColumnType.STRING, "", "difficulty as published with the task", nullable=True),
        Column("metadata", ColumnType.STRING, "JSON", "what else the task says of the example", nullable=True),
    ),
)
