"""The vocabulary in which tables are declared: a column with its type, unit, meaning and level.

How much a run measures: three named levels, each holding all columns of the one before it.

The columns that every table begins with; the writer fills them from the manifest.

`examples`: what was asked, as text, so that a run can be read without its data set.

`depths`: the reference utility at every requested depth (Appendix E.1 of the paper).

The FP64 columns of `questions`: one path analysed with an FP64 readout (Appendices E.5 and E.9).

`questions`: the record of one update of one example, everything but the FP64 path (Sections 3 and 4).

`tokens`: the same quantities for each reference token alone, with `--tokens` (Appendix E.8).

`paths`: φ and three derivatives at the 257 nodes of the FP64 analysis, on request (Appendix E.5).

The versioned schema of a run directory: which tables there are and what a change of version means.

The schema as Markdown, and the part of docs/run-directory.md that it fills.

`python -m loopscope.store.tables docs/run-directory.md` brings the file up to date; a test keeps the two equal.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from loopscope.path.grids import CURVATURE_SCALES, DIFFERENCE_SPACINGS, GRID, PATH_NODES


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

    def includes(self, other: Level) -> bool:
        """Whether a run at this level fills the columns of `other`."""
        order = list(Level)
        return order.index(other) <= order.index(self)


class ColumnType(StrEnum):
    """The types a shard may hold: plain Parquet, nothing that a reader would have to know about."""

    STRING = "string"
    BOOL = "bool"
    INT8 = "int8"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT32_LIST = "list<int32>"
    FLOAT32_LIST = "list<float32>"
    FLOAT64_LIST = "list<float64>"
    STRING_LIST = "list<string>"

    @property
    def element(self) -> ColumnType:
        """The element type of a list, the type itself otherwise.

        >>> ColumnType.FLOAT64_LIST.element.value
        'float64'
        """
        return _ELEMENTS.get(self, self)

    @property
    def is_list(self) -> bool:
        """Whether a cell holds a list."""
        return self in _ELEMENTS

    @property
    def is_float(self) -> bool:
        """Whether a cell holds floating-point numbers, alone or in a list."""
        return self.element in (ColumnType.FLOAT32, ColumnType.FLOAT64)


_ELEMENTS = {
    ColumnType.INT32_LIST: ColumnType.INT32,
    ColumnType.FLOAT64_LIST: ColumnType.FLOAT64,
    ColumnType.FLOAT32_LIST: ColumnType.FLOAT32,
    ColumnType.STRING_LIST: ColumnType.STRING,
}


@dataclass(frozen=True)
class Column:
    """One column, declared once: the writer, the reader, `verify` and the documentation all read this."""

    name: str
    type: ColumnType
    unit: str
    """Unit of a cell; an empty string where there is none."""
    meaning: str
    """One line for the documentation."""
    level: Level = Level.QUICK
    """The first level that fills the column; at earlier levels every cell is null."""
    nullable: bool = False
    """Whether a cell may be null even at a level that fills the column."""
    length: int | None = None
    """The number of elements of every list, where it is fixed."""

    @property
    def optional(self) -> bool:
        """Whether the Parquet field is optional, which does not depend on the level of one run."""
        return self.nullable or self.level is not Level.QUICK

    def required_at(self, level: Level) -> bool:
        """Whether a run at `level` must fill every cell."""
        return level.includes(self.level) and not self.nullable


@dataclass(frozen=True)
class Table:
    """One table of the run directory: a folder of shards with the same columns."""

    name: str
    per: str
    """What one row stands for."""
    key: tuple[str, ...]
    """The columns that name a row, in sorting order; the first is always `row`."""
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = self.names
        if len(set(names)) != len(names):
            raise ValueError(f"table {self.name}: a column is declared twice")
        if self.key[0] != "row" or not set(self.key) <= set(names):
            raise ValueError(f"table {self.name}: key {self.key} does not fit its columns")

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in file order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The declaration of one column."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"table {self.name} has no column {name}")


IDENTITY = (
    Column("model", ColumnType.STRING, "", "name of the model"),
    Column("task", ColumnType.STRING, "", "name of the task"),
    Column("split", ColumnType.STRING, "", "split of the task"),
    Column("row", ColumnType.INT32, "index", "position of the example in this run's task, from 0"),
    Column("example_id", ColumnType.STRING, "", "identifier of the example"),
)

SOURCE_ROW = Column("source_row", ColumnType.INT64, "index", "row of the example in the published split, from 0")

TRANSITION = Column("transition", ColumnType.INT32, "loops", "t of the update t → t+1")


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


_AFFINE = "; affine readouts"


def _value(name: str, unit: str, meaning: str, *, nullable: bool = False) -> Column:
    return Column(f"fp64_{name}", ColumnType.FLOAT64, unit, meaning, Level.FULL, nullable)


def _bound(name: str, unit: str, meaning: str) -> Column:
    return _value(name, unit, meaning + _AFFINE, nullable=True)


def _spacings(name: str, unit: str, meaning: str) -> Column:
    length = len(DIFFERENCE_SPACINGS)
    return Column(f"fp64_{name}", ColumnType.FLOAT64_LIST, unit, meaning, Level.FULL, nullable=True, length=length)


FP64 = (
    _value("slope", "nats", "A of the FP64 path"),
    _value("quadratic", "nats", "Q of the FP64 path"),
    _value("gain", "nats", "ΔU of the FP64 path"),
    _value("state_gap", "state units", "largest entry of |H + D − H⁺|"),
    _value("decomposition_residual", "nats", "ΔU − (A + ∫(1−s)φ''(s)ds)"),
    _bound("kl_residual", "nats", "ΔU − (A − C), C from endpoint logits"),
    _bound("M", "nats", "upper bound of |φ'''| on [0, 1]"),
    _bound("L_D", "nats", "upper bound of −φ'' on [0, 1]"),
    _bound("mu", "nats", "lower bound of −φ'' on [0, 1]"),
    _bound("C_lower", "nats", "lower partition sum of the curvature deviation C(1)"),
    _bound("C_upper", "nats", "upper partition sum of the curvature deviation C(1)"),
    _bound("S", "nats", "signed-residual envelope"),
    _value("sampled_curvature", "nats", "largest sampled −φ''"),
    _value("sampled_convexity", "nats", "largest sampled φ''"),
    _value("sampled_third", "nats", "largest sampled |φ'''|"),
    _value("optimum_low", "scale", "lower end of the bracket around α*"),
    _value("optimum_high", "scale", "upper end of the bracket around α*"),
    Column(
        "fp64_optimum_kind",
        ColumnType.STRING,
        "",
        "`left` (α* = 0), `interior` or `right` (α* = 1)",
        Level.FULL,
    ),
    _value("optimum_gain_low", "nats", "lower bound of φ(α*)"),
    _value("optimum_gain_high", "nats", "upper bound of φ(α*); the best searched value where not concave"),
    _value("optimum_ceiling", "nats", "what no unsearched value should exceed; searched paths", nullable=True),
    _bound("optimum_slope_low", "nats", "φ' at the lower end of the bracket"),
    _bound("optimum_slope_high", "nats", "φ' at the upper end of the bracket"),
    _bound("optimum_mu", "nats", "lower bound of −φ'' on the bracket"),
    _bound("optimum_nu", "nats", "upper bound of −φ'' on the bracket"),
    _value("predicted_scale", "scale", "α̂ from the FP64 A and Q"),
    _value("predicted_gain", "nats", "φ(α̂)"),
    _bound("safe_scale", "scale", "min{1, 0.9·2A/L_D}, where A > 0"),
    _bound("safe_gain", "nats", "φ at the safe scale"),
    _value("quarter_gain", "nats", "φ(1/4)"),
    _bound("boundary_low", "scale", "lower end of the bracket around the progress boundary r₁"),
    _bound("boundary_high", "scale", "upper end of the bracket around the progress boundary r₁"),
    Column("fp64_evaluations", ColumnType.INT32, "scales", "scales evaluated in locating α*", Level.FULL),
    _spacings("third_absolute_gap", "nats", "|φ''' − central difference of φ''| at spacings 0.01, 0.005, 0.0025"),
    _spacings("third_relative_gap", "ratio", "the same, relative to |φ'''|"),
    _value("refined_gain_change", "nats", "change of the best gain from 129 to 257 nodes", nullable=True),
    _value("refined_scale_change", "scale", "change of its location from 129 to 257 nodes", nullable=True),
    _value("refined_curvature_change", "nats", "change of the largest sampled −φ'' likewise", nullable=True),
    _value("refined_third_change", "nats", "change of the largest sampled |φ'''| likewise", nullable=True),
)


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


def _nodes(name: str, unit: str, meaning: str) -> Column:
    return Column(name, ColumnType.FLOAT64_LIST, unit, meaning, Level.FULL, length=PATH_NODES)


PATHS = Table(
    name="paths",
    per="example and transition",
    key=("row", "transition"),
    columns=(
        *IDENTITY,
        TRANSITION,
        _nodes("alpha", "scale", "the nodes, increasing from 0 to 1"),
        _nodes("gain", "nats", "φ at the nodes"),
        _nodes("slope", "nats", "φ' at the nodes"),
        _nodes("curvature", "nats", "φ'' at the nodes"),
        _nodes("third", "nats", "φ''' at the nodes"),
    ),
)


SCHEMA_VERSION = 1
"""Raised by one whenever a column is added, dropped, renamed or given another meaning."""

TABLES: dict[str, Table] = {table.name: table for table in (EXAMPLES, QUESTIONS, DEPTHS, TOKENS, PATHS)}
"""Every table by name; `tokens` and `paths` are written only when a run asks for them."""


def tables_of(*, tokens: bool, paths: bool) -> tuple[Table, ...]:
    """The tables that a run with these options writes.

    >>> [table.name for table in tables_of(tokens=False, paths=True)]
    ['examples', 'questions', 'depths', 'paths']
    """
    left_out = {name for name, wanted in (("tokens", tokens), ("paths", paths)) if not wanted}
    return tuple(table for name, table in TABLES.items() if name not in left_out)


BEGIN = "<!-- schema: generated by loopscope.store.tables -->"
END = "<!-- schema: end -->"


def schema_markdown() -> str:
    """All tables of the current schema, each with one line per column."""
    parts = [f"Schema version {SCHEMA_VERSION}."]
    parts += [_table_markdown(table) for table in TABLES.values()]
    return "\n\n".join(parts)


def with_schema(document: str) -> str:
    """`document` with the text between its two markers replaced by the current schema."""
    before, marker, rest = document.partition(BEGIN)
    _, closing, after = rest.partition(END)
    if not marker or not closing:
        raise ValueError(f"the document lacks the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{schema_markdown()}\n\n{END}{after}"


def _table_markdown(table: Table) -> str:
    head = [
        f"### `{table.name}`: one row per {table.per}",
        "",
        f"Sorted by {', '.join(f'`{name}`' for name in table.key)} within a shard.",
        "",
        "| column | type | unit | level | null | meaning |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(head + [_column_markdown(column) for column in table.columns])


def _column_markdown(column: Column) -> str:
    kind = column.type.value if column.length is None else f"{column.type.value}[{column.length}]"
    null = "yes" if column.nullable else ""
    meaning = column.meaning.replace("|", "\\|")
    return f"| `{column.name}` | `{kind}` | {column.unit} | {column.level} | {null} | {meaning} |"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(with_schema(path.read_text(encoding="utf-8")), encoding="utf-8")
