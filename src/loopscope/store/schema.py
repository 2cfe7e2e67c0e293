"""The tables of a run directory, column by column, and the version of this schema.

`examples` holds the texts, so that a run can be read without its data set; `questions` one update of one example
(Sections 3 and 4 of the paper; the `fp64_` columns: Appendices E.5 and E.9); `depths` the reference utility at every
requested depth (Appendix E.1); `tokens` the quantities of each reference token alone (E.8); `paths` φ and three
derivatives at the 257 nodes of the FP64 analysis (E.5); `certificates` enclosures and verdicts that include rounding;
`trace` every reference position after every loop; `longer_steps` steps longer than the proposed one; `as_in_paper` the
numbers of the paper's protocol; `interpolation` how a grid was interpolated. docs/run-directory.md lists all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

SCHEMA_VERSION = 2
"""Raised by one whenever a column or a table is added, dropped, renamed or given another meaning.

A run of an older version is read as it is: columns that are newer than it are null, tables that are newer are missing,
and what this version no longer declares is left out. A run of a newer version is refused.
"""


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
        return ColumnType(self.value.removeprefix("list<").removesuffix(">"))

    @property
    def is_list(self) -> bool:
        """Whether a cell holds a list."""
        return self.value.startswith("list<")

    @property
    def is_float(self) -> bool:
        """Whether a cell holds floating-point numbers, alone or in a list."""
        return self.element in (ColumnType.FLOAT32, ColumnType.FLOAT64)


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
    since: int = 1
    """The schema version that added the column; runs of earlier ones have nulls."""

    @property
    def optional(self) -> bool:
        """Whether the Parquet field is optional, which does not depend on the level of one run."""
        return self.nullable or self.level is not Level.QUICK or self.since > 1

    def required(self, level: Level, version: int) -> bool:
        """Whether a run at `level` and of schema version `version` must fill every cell."""
        return level.includes(self.level) and not self.nullable and self.since <= version


@dataclass(frozen=True)
class Table:
    """One table of the run directory: a folder of shards with the same columns."""

    name: str
    per: str
    """What one row stands for."""
    key: tuple[str, ...]
    """The columns that name a row, in sorting order; the first is always `row`."""
    columns: tuple[Column, ...]
    since: int = 1
    """The schema version that added the table; runs of earlier ones do not have it."""

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
        return self.columns[self.names.index(name)]


SCHEMA = """\
examples: example: row
model | string |  |  | name of the model
task | string |  |  | name of the task
split | string |  |  | split of the task
row | int32 | index |  | position of the example in this run's task, from 0
example_id | string |  |  | identifier of the example
source_row | int64 | index |  | row of the example in the published split, from 0
kind | string |  |  | `solution` (reference text) or `options` (multiple choice)
prompt | string |  |  | text before the reference or before the options
reference | string |  | null | reference solution; null for options
options | list<string> |  | null | option texts; null for solutions
correct_option | int32 | index | null | index of the right option, from 0
n_tokens | int32 | tokens |  | reference tokens, over all options together
n_positions | int32 | tokens |  | valid token positions, over all options together
option_tokens | list<int32> | tokens | null | tokens scored in each option
difficulty | string |  | null | difficulty as published with the task
metadata | string | JSON | null | what else the task says of the example

questions: example and transition: row transition
model, task, split, row, example_id, source_row
transition | int32 | loops |  | t of the update t → t+1
kind, n_tokens, n_positions
n_options | int32 | options | null | number of options; null for solutions
correct_option, difficulty
batch | int32 | index | null | batch of the work unit in which the example ran
batch_width | int32 | tokens | null | padded width of that batch
utility_before | float64 | nats |  | U(H), before the update
utility_after | float64 | nats |  | U(H⁺), after the update
gain | float64 | nats |  | ΔU = φ(1), the full-step gain
slope | float64 | nats |  | A = φ'(0)
quadratic | float64 | nats |  | Q = φ''(0)/2
outcome | int8 | code |  | class of the update: a code of `loopscope.path.Outcome`
quadratic_scale | float64 | scale |  | α̂, the maximiser of Aα + Qα² on [0, 1]
grid_gain | list<float64>[21] | nats | grid | φ at the 21 scales 0, 0.05, …, 1
curvature_path | list<float64>[5] | nats | grid | φ'' at the scales 0, 0.25, 0.5, 0.75, 1
kl_correction | float64 | nats | grid null | mean KL(p(0)‖p(1)) from the endpoint logits; affine readouts
kl_residual | float64 | nats | grid null | ΔU − (A − C) with that correction C; affine readouts
update_norm | float64 | state units | grid | ‖D‖, Frobenius, all valid positions of all options
relative_change | float64 | ratio | grid | ‖D‖ / (‖H‖ + 1e-12)
cosine_change | float64 | ratio | grid | 1 − ⟨H, H⁺⟩ / (‖H‖ ‖H⁺‖)
output_kl | float64 | nats | grid | KL(p(0)‖p(1)) averaged over prediction tokens, then over options
entropy_change | float64 | nats | grid | entropy after minus before, averaged likewise
quadratic_gain | float64 | nats | grid | φ(α̂), the gain of H + α̂D without rounding the state
bf16_quarter_gain | float64 | nats | grid | gain of H + D/4 rounded to BF16
bf16_quadratic_gain | float64 | nats | grid | gain of H + α̂D rounded to BF16
scalar_quadratic | float64 | nats | grid null | Q by a scalar second derivative along the chord
scalar_check_passed | bool |  | grid null | whether it agrees with `quadratic` to 1e-6 absolute or 1e-4 relative
gate_continuing | int32 | tokens | grid null | valid positions at which the exit gate continues past t
fp64_slope | float64 | nats | full | A of the FP64 path
fp64_quadratic | float64 | nats | full | Q of the FP64 path
fp64_gain | float64 | nats | full | ΔU of the FP64 path
fp64_state_gap | float64 | state units | full | largest entry of |H + D − H⁺|
fp64_decomposition_residual | float64 | nats | full | ΔU − (A + ∫(1−s)φ''(s)ds)
fp64_kl_residual | float64 | nats | full null | ΔU − (A − C), C from endpoint logits; affine readouts
fp64_M | float64 | nats | full null | upper bound of |φ'''| on [0, 1]; affine readouts
fp64_L_D | float64 | nats | full null | upper bound of −φ'' on [0, 1]; affine readouts
fp64_mu | float64 | nats | full null | lower bound of −φ'' on [0, 1]; affine readouts
fp64_C_lower | float64 | nats | full null | lower partition sum of the curvature deviation C(1); affine readouts
fp64_C_upper | float64 | nats | full null | upper partition sum of the curvature deviation C(1); affine readouts
fp64_S | float64 | nats | full null | signed-residual envelope; affine readouts
fp64_sampled_curvature | float64 | nats | full | largest sampled −φ''
fp64_sampled_convexity | float64 | nats | full | largest sampled φ''
fp64_sampled_third | float64 | nats | full | largest sampled |φ'''|
fp64_optimum_low | float64 | scale | full | lower end of the bracket around α*
fp64_optimum_high | float64 | scale | full | upper end of the bracket around α*
fp64_optimum_kind | string |  | full | `left` (α* = 0), `interior` or `right` (α* = 1)
fp64_optimum_gain_low | float64 | nats | full | lower bound of φ(α*)
fp64_optimum_gain_high | float64 | nats | full | upper bound of φ(α*); the best searched value where not concave
fp64_optimum_ceiling | float64 | nats | full null | what no unsearched value should exceed; searched paths
fp64_optimum_slope_low | float64 | nats | full null | φ' at the lower end of the bracket; affine readouts
fp64_optimum_slope_high | float64 | nats | full null | φ' at the upper end of the bracket; affine readouts
fp64_optimum_mu | float64 | nats | full null | lower bound of −φ'' on the bracket; affine readouts
fp64_optimum_nu | float64 | nats | full null | upper bound of −φ'' on the bracket; affine readouts
fp64_predicted_scale | float64 | scale | full | α̂ from the FP64 A and Q
fp64_predicted_gain | float64 | nats | full | φ(α̂)
fp64_safe_scale | float64 | scale | full null | min{1, 0.9·2A/L_D}, where A > 0; affine readouts
fp64_safe_gain | float64 | nats | full null | φ at the safe scale; affine readouts
fp64_quarter_gain | float64 | nats | full | φ(1/4)
fp64_boundary_low | float64 | scale | full null | lower end of the bracket around the progress boundary r₁; affine \
readouts
fp64_boundary_high | float64 | scale | full null | upper end of the bracket around the progress boundary r₁; affine \
readouts
fp64_evaluations | int32 | scales | full | scales evaluated in locating α*
fp64_third_absolute_gap | list<float64>[3] | nats | full null | |φ''' − central difference of φ''| at spacings \
0.01, 0.005, 0.0025
fp64_third_relative_gap | list<float64>[3] | ratio | full null | the same, relative to |φ'''|
fp64_refined_gain_change | float64 | nats | full null | change of the best gain from 129 to 257 nodes
fp64_refined_scale_change | float64 | scale | full null | change of its location from 129 to 257 nodes
fp64_refined_curvature_change | float64 | nats | full null | change of the largest sampled −φ'' likewise
fp64_refined_third_change | float64 | nats | full null | change of the largest sampled |φ'''| likewise

depths: example and depth: row depth
model, task, split, row, example_id, source_row
depth | int32 | loops |  | number of loops after which the state is read out
utility | float64 | nats |  | reference utility U(H_t)
option_scores | list<float64> | nats per token | null | length-normalised score of each option; null for solutions
option_logliks | list<float64> | nats | null | summed log likelihood of each option; null for solutions
chosen_option | int32 | index | null | option with the highest normalised score, ties to the first

tokens: reference token and transition: row transition option token
model, task, split, row, example_id, transition
option | int32 | index |  | option that the token belongs to; 0 for solutions
token | int32 | index |  | index among the reference tokens of its sequence, from 0
position | int32 | index |  | position in the sequence whose state predicts it
token_id | int32 |  |  | vocabulary id of the reference token
text_start | int32 | characters | null | start in the reference or option text
text_end | int32 | characters | null | end in the reference or option text
utility_before | float64 | nats |  | log probability before the update
gain | float64 | nats |  | ΔU of the token
slope | float64 | nats |  | A of the token
quadratic | float64 | nats |  | Q of the token
outcome
quadratic_scale | float64 | scale |  | α̂ of the token
quarter_gain | float64 | nats |  | gain of the token at scale 1/4
quadratic_gain | float64 | nats |  | gain of the token at its own α̂
grid_gain | list<float32>[21] | nats | grid null | φ of the token at the 21 scales 0, 0.05, …, 1
exit_cdf | float64 | probability | null | exit CDF of the gate through depth t; its confidence at t, where the \
policy is a threshold on that
exit_depth | int32 | loops | null | depth at which the gate's policy exits
exit_depth_fp64 | int32 | loops | null | the same, rebuilt in FP64
continues | bool |  | null | whether the policy takes this update

paths: example and transition: row transition
model, task, split, row, example_id, transition
alpha | list<float64>[257] | scale | full | the nodes, increasing from 0 to 1
gain | list<float64>[257] | nats | full | φ at the nodes
slope | list<float64>[257] | nats | full | φ' at the nodes
curvature | list<float64>[257] | nats | full | φ'' at the nodes
third | list<float64>[257] | nats | full | φ''' at the nodes

certificates: example and transition: row transition
model, task, split, row, example_id, transition
outcome | int8 | code | null | certified class of the update; null if open
prediction_sign | int8 |  | null | certified sign of A + Q; null if open
recovered | bool |  | null | certified sign of φ(1/4) > 0 of a certified finite-step failure; null elsewhere or if \
open
arithmetic | string |  |  | what decided: `fp64`, `balls` (Arb), or `open`: not all is decided
utility | float64 | nats | ends | U(H)
slope | float64 | nats | ends | A
quadratic | float64 | nats | ends | Q
prediction | float64 | nats | ends | A + Q
gain | float64 | nats | ends | ΔU
quarter_gain | float64 | nats | ends | φ(1/4) of the exact H + D/4
predicted_scale | float64 | scale |  | α̂ from the middles of A and Q, an exact float64
predicted_gain | float64 | nats | ends | φ at exactly that α̂
kl | float64 | nats | ends | KL(p(0)‖p(1)), mean over tokens, then over options
L_D | float64 | nats | null | −φ'' is at most this on [0, 1]
safe_scale | float64 | scale | null | every 0 < α up to this has a gain; null unless A > 0 is certain
safe_gain_low | float64 | nats | null | the gain at `safe_scale` is at least this
C | float64 | nats | ends | C(1), the curvature deviation
residual_high | float64 | nats | null | |φ' − q'| is at most this on [0, 1]
regret_high | float64 | nats | null | φ(α*) − φ(α̂) is at most this

trace: reference token and depth: row depth option token
model, task, split, row, example_id, depth, option, token, position, token_id, text_start, text_end
log_prob | float32 | nats |  | log p_t(y)
top_id | int32 |  |  | vocabulary id of the likeliest token
top_prob | float32 | probability |  | its probability
margin | float32 | probability |  | its probability minus that of the second
entropy | float32 | nats |  | entropy of p_t
state_norm | float32 | state units |  | ‖H_t‖
step_norm | float32 | state units |  | ‖D_t‖
state_cosine | float32 | ratio |  | cosine of H_t and H_{t−1}; 0 where one of them is 0
acceleration | float32 | state units | null | ‖D_t − D_{t−1}‖; null at depth 1
step_cosine | float32 | ratio | null | cosine of D_t and D_{t−1}, 0 where one of them is 0; null at depth 1
gate | float32 | probability | null | λ_t of the exit gate, in the arithmetic of the states; null without a gate
kl_from_previous | float32 | nats | null | KL(p_{t−1} ‖ p_t); null at depth 1
kl_to_previous | float32 | nats | null | KL(p_t ‖ p_{t−1}); null at depth 1
kl_min_p | float32 | nats | null | KL(p_{t−1} ‖ p_t) after probabilities below 0.1·max are set to 1/V, \
renormalised; null at depth 1
mean_v | float32 | nats | null | mean of v under p_{t−1}; v_reference − mean_v is A of the token, affine readouts; \
null at depth 1
var_v | float32 | nats | null | variance of v under p_{t−1}; −var_v/2 is Q of the token, affine readouts; null at \
depth 1
v_reference | float32 | nats | null | v of the reference token; null at depth 1
gain_25 | float32 | nats | null | log p(y) at H_{t−1} + 0.25·D minus that at H_{t−1}; null unless t−1 → t is \
analysed at level grid or full
gain_50 | float32 | nats | null | log p(y) at H_{t−1} + 0.5·D minus that at H_{t−1}; null unless t−1 → t is \
analysed at level grid or full
gain_75 | float32 | nats | null | log p(y) at H_{t−1} + 0.75·D minus that at H_{t−1}; null unless t−1 → t is \
analysed at level grid or full
lens_ids | list<int32> |  | null | the K likeliest tokens, in order; with a lens
lens_probs | list<float32> | probability | null | their probabilities; with a lens
rank | int32 |  | null | rank of the reference token, 1 is the likeliest; with a lens

longer_steps: example and transition: row transition
model, task, split, row, example_id, transition
end_slope | float64 | nats |  | φ'(1): positive where a longer step would have gained more at first
gains | list<float64> | nats |  | φ at the scales 0, 0.05, …, S, where S is `scales_to`
best_scale | float64 | scale |  | the best of these scales, ties to the smallest
best_gain | float64 | nats |  | φ there
quadratic_scale | float64 | scale |  | the maximiser of Aα + Qα² on [0, S]
quadratic_gain | float64 | nats |  | φ there, without rounding the state

as_in_paper: example and transition: row transition
model, task, split, row, example_id, transition
endpoint_replay | float64 | nats | grid | largest difference of U(H) and U(H⁺) from what a sweep of utilities reads \
of the same states
kl_slope | float64 | nats | grid null | A by a gradient in FP32
kl_gain | float64 | nats | grid null | ΔU by log-softmax in FP32
kl_correction | float64 | nats | grid null | mean KL(p(0)‖p(1)) from the endpoint logits, in FP32; affine readouts
kl_residual | float64 | nats | grid null | ΔU − (A − C) of `kl_gain`, `kl_slope` and `kl_correction`; affine readouts

interpolation: example and transition: row transition
model, task, split, row, example_id, transition
evaluated | bool |  |  | whether φ was evaluated at every scale of `grid_gain` and at α̂, because interpolation was \
too far off
truncation | float64 | nats |  | largest difference on the grid between φ from derivatives at 0, ½ and 1 and from \
all five scales
residual | float64 | nats |  | largest difference between interpolated and evaluated φ at ¼, ½, ¾ and 1
allowed | float64 | nats |  | what the smaller of the two may be: 8 roundings of 1 + |score|
"""
"""Every table: its name, what a row stands for, its key; then its columns: name, type, unit, flags, meaning.

The flags are the level where it is not `quick`, `null`, `since=N` where version N added the column, and `ends` for two
columns, the lower and the upper end of an enclosure. A line of names takes columns as they were declared above. A table
that version N added has `: N` after its key.
"""

_ENDS = {"low": "no more than the true value", "high": "no less than the true value"}


def _read(schema: str) -> Iterator[Table]:
    declared: dict[str, Column] = {}
    for block in schema.split("\n\n"):
        head, *lines = block.splitlines()
        columns: list[Column] = []
        for line in lines:
            if " | " in line:
                columns += (found := list(_columns(*line.split(" | ", 4))))
                declared = {column.name: column for column in found} | declared
            else:
                columns += (declared[name] for name in line.split(", "))
        name, per, key, *since = head.split(": ")
        yield Table(name, per, tuple(key.split()), tuple(columns), *map(int, since))


def _columns(name: str, kind: str, unit: str, given: str, meaning: str) -> Iterator[Column]:
    element, _, length = kind.removesuffix("]").partition("[")
    flags = given.split()
    column = Column(
        name,
        ColumnType(element),
        unit,
        meaning,
        level=next((level for level in Level if level in flags), Level.QUICK),
        nullable="null" in flags,
        length=int(length) if length else None,
        since=next((int(flag.removeprefix("since=")) for flag in flags if flag.startswith("since=")), 1),
    )
    if "ends" not in flags:
        yield column
    else:
        for end, side in _ENDS.items():
            yield replace(column, name=f"{name}_{end}", meaning=f"{meaning}: {side}", nullable=True)


TABLES: dict[str, Table] = {table.name: table for table in _read(SCHEMA)}
"""Every table by name; those after `depths` are written only when a run asks for them."""
QUESTIONS = TABLES["questions"]


def _as_in_questions(suffix: str, *names: str) -> tuple[Column, ...]:
    """Columns of `questions` that the paper's protocol gives other numbers."""
    columns = (QUESTIONS.column(f"fp64_{name}") for name in names)
    return tuple(replace(one, nullable=True, meaning=one.meaning.split(";")[0] + suffix) for one in columns)


_PAPER = TABLES["as_in_paper"]
AS_IN_PAPER = replace(
    _PAPER,
    columns=(
        *_PAPER.columns,
        *_as_in_questions(" in FP32", "state_gap"),
        *_as_in_questions(
            "; the paper's envelope and bracket, affine readouts",
            *("M", "L_D", "mu", "C_lower", "C_upper", "S", "optimum_low", "optimum_high", "optimum_kind"),
            *("optimum_gain_low", "optimum_gain_high", "optimum_slope_low", "optimum_slope_high", "optimum_mu"),
            *("optimum_nu", "safe_scale", "safe_gain", "evaluations"),
        ),
        *_as_in_questions(
            ", at adaptive locations; searched paths",
            *("sampled_curvature", "sampled_convexity", "sampled_third"),
            *("refined_curvature_change", "refined_third_change"),
        ),
    ),
)
"""Under the paper's protocol: its own numbers where `questions` holds other ones, under the same names.

Studies of such a run read them instead. A cell is null where both protocols give the same number, or where there is
none.
"""
TABLES["as_in_paper"] = AS_IN_PAPER

_TRACE = TABLES["trace"]
TRACE_COLUMNS = _TRACE.columns[_TRACE.names.index("log_prob") :]
"""The columns of `trace` about one loop at one position: H_t is the state after loop t, D_t = H_t − H_{t−1} its step,
z_t the logits, p_t their softmax, v = z_t − z_{t−1}, y the reference token. What needs a loop before the first is null
at depth 1, but H_0 counts as the state before it.
"""
GAIN_SCALES = (0.25, 0.5, 0.75)
GAIN_COLUMNS = tuple(_TRACE.column(f"gain_{round(100 * scale)}") for scale in GAIN_SCALES)
LENS_COLUMNS = tuple(map(_TRACE.column, ("lens_ids", "lens_probs", "rank")))
MIN_P = 0.1
"""Probabilities below this share of the largest are set to 1/V in `kl_min_p`."""
