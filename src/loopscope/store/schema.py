"""The tables of a run directory, column by column, and the version of this schema.

`examples` holds the texts, so that a run can be read without its data set; `questions` one update of one example
(Sections 3 and 4 of the paper; the `fp64_` columns: Appendices E.5 and E.9); `depths` the reference utility at every
requested depth (Appendix E.1); `tokens` the quantities of each reference token alone (E.8); `paths` φ and three
derivatives at the 257 nodes of the FP64 analysis (E.5); `certificates` enclosures and verdicts that include rounding;
`trace` every reference position after every loop; `longer_steps` steps longer than the proposed one.
docs/run-directory.md lists all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from loopscope.errors import LoopscopeError, parse_number, parse_ranges, setting, shown

SCHEMA_VERSION = 3
"""Raised by one whenever a column or a table is added, dropped, renamed or given another meaning.

A run of an older version is read as it is: columns that are newer than it are null, tables that are newer are missing,
and what this version no longer declares is left out. A run of a newer version is refused.
"""


CHORD = 100_000
"""A transition k → R is stored as k + CHORD · (R − k − 1): an ordinary update t → t+1 as t."""


def transition_of(before: int, after: int) -> int:
    """The stored number of the update from one state to a later one.

    >>> transition_of(4, 5), transition_of(1, 3)
    (4, 100001)
    """
    return before + CHORD * (after - before - 1)


def ends_of(transition: Any) -> tuple[Any, Any]:
    """The loops before and after an update, of a number, an array or a polars expression.

    >>> ends_of(4), ends_of(100001)
    ((4, 5), (1, 3))
    """
    before = transition % CHORD
    return before, before + transition // CHORD + 1


def parse_transitions(text: str, *, largest: int) -> tuple[int, ...]:
    """Updates as they are stored: t and ranges of it for t → t+1, k>R for the chord from state k to state R.

    >>> parse_transitions("1-2, 1>3", largest=100)
    (100001, 1, 2)
    """
    entries, name, found = text.split(","), "transitions", []
    plain = ",".join(entry for entry in entries if ">" not in entry)
    for entry in (entry for entry in entries if ">" in entry):
        before, after = (parse_number(end) for end in entry.split(">", 1))
        if before is None or after is None or not before < after <= largest:
            raise LoopscopeError(f"{setting(name, text)}: {shown(entry)} is no chord up to {largest:,}: write e.g. 1>3")
        found.append(transition_of(before, after))
    return (*found, *(parse_ranges(plain, name, largest=largest, most=largest + 1) if plain or not found else ()))


def update_name(transition: int) -> str:
    """`4→5`, or `1→3` for a chord.

    >>> update_name(4), update_name(100001)
    ('4→5', '1→3')
    """
    return "{}→{}".format(*ends_of(transition))


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


@dataclass(frozen=True)
class Column:
    """One column, declared once: the writer, the reader, `verify` and the documentation all read this."""

    name: str
    type: str
    """As Arrow names it: `string`, `bool`, `int32`, `float64`, …, or a list of these, `list<float64>`."""
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
    def is_list(self) -> bool:
        """Whether a cell holds a list."""
        return self.type.startswith("list<")

    @property
    def element(self) -> str:
        """The type of a cell, or of what is in its list."""
        return self.type.removeprefix("list<").removesuffix(">")

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

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in file order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """The declaration of one column."""
        return self.columns[self.names.index(name)]


SCHEMA = """\
examples: example: row
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
difficulty | string |  | null | difficulty as published with the task
metadata | string | JSON | null | what else the task says of the example

questions: example and transition: row transition
task, split, row, example_id, source_row
transition | int32 | loops |  | t of the update t → t+1; of a chord k → R, k + 100000·(R − k − 1)
utility_before | float64 | nats |  | U(H), before the update
utility_after | float64 | nats |  | U(H⁺), after the update
gain | float64 | nats |  | ΔU = φ(1), the full-step gain
slope | float64 | nats |  | A = φ'(0)
quadratic | float64 | nats |  | Q = φ''(0)/2
outcome | int8 | code |  | class of the update: a code of `loopscope.path.Outcome`
quadratic_scale | float64 | scale |  | α̂, the maximiser of Aα + Qα² on [0, 1]
grid_gain | list<float64>[21] | nats | grid | φ at the 21 scales 0, 0.05, …, 1
curvature_path | list<float64>[5] | nats | grid | φ'' at the scales 0, 0.25, 0.5, 0.75, 1
kl_correction | float64 | nats | grid null | C, the mean KL(p(0)‖p(1)) from the endpoint logits, in FP32 under \
protocol `paper`; solutions under affine readouts
update_norm | float64 | state units | grid | ‖D‖, Frobenius, all valid positions of all options
relative_change | float64 | ratio | grid | ‖D‖ / (‖H‖ + 1e-12)
cosine_change | float64 | ratio | grid | 1 − ⟨H, H⁺⟩ / (‖H‖ ‖H⁺‖)
output_kl | float64 | nats | grid | KL(p(0)‖p(1)) averaged over prediction tokens, then over options
entropy_change | float64 | nats | grid | entropy after minus before, averaged likewise
quadratic_gain | float64 | nats | grid | φ(α̂), the gain of H + α̂D without rounding the state
bf16_quarter_gain | float64 | nats | grid | gain of H + D/4 rounded to BF16
bf16_quadratic_gain | float64 | nats | grid | gain of H + α̂D rounded to BF16
grid_evaluated | bool |  | grid null since=3 | whether φ was evaluated at every scale of `grid_gain` and at α̂, \
because interpolation was too far off; null where nothing is interpolated
interpolation_error | float64 | nats | grid null since=3 | error of the interpolated φ, the smaller of two \
estimates; at most 8 roundings of 1 + |score| are allowed
scalar_quadratic | float64 | nats | grid null | Q by a scalar second derivative along the chord
endpoint_replay | float64 | nats | grid null since=3 | largest difference of U(H) and U(H⁺) from what a sweep of \
utilities reads of the same states; protocol `paper`
kl_slope | float64 | nats | grid null since=3 | A by a gradient in FP32; affine readouts, protocol `paper`
kl_gain | float64 | nats | grid null since=3 | ΔU by log-softmax in FP32; affine readouts, protocol `paper`
fp64_slope | float64 | nats | full | A of the FP64 path
fp64_quadratic | float64 | nats | full | Q of the FP64 path
fp64_gain | float64 | nats | full | ΔU of the FP64 path
fp64_state_gap | float64 | state units | full | largest entry of |H + D − H⁺|
fp64_decomposition_residual | float64 | nats | full | ΔU − (A + ∫(1−s)φ''(s)ds)
fp64_M | float64 | nats | full null | upper bound of |φ'''| on [0, 1]; affine readouts
fp64_L_D | float64 | nats | full null | upper bound of −φ'' on [0, 1]; affine readouts
fp64_mu | float64 | nats | full null | lower bound of −φ'' on [0, 1]; affine readouts
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
fp64_optimum_slope | list<float64>[2] | nats | full null since=3 | φ' at both ends of the bracket; affine readouts
fp64_optimum_curvature | list<float64>[2] | nats | full null since=3 | lower and upper bound of −φ'' on the bracket; \
affine readouts
fp64_predicted_scale | float64 | scale | full | α̂ from the FP64 A and Q
fp64_predicted_gain | float64 | nats | full | φ(α̂)
fp64_safe_scale | float64 | scale | full null | min{1, 0.9·2A/L_D}, where A > 0; affine readouts
fp64_safe_gain | float64 | nats | full null | φ at the safe scale; affine readouts
fp64_quarter_gain | float64 | nats | full | φ(1/4)
fp64_boundary | list<float64>[2] | scale | full null since=3 | both ends of the bracket around the progress boundary \
r₁; affine readouts
fp64_third_absolute_gap | list<float64>[3] | nats | full null | |φ''' − central difference of φ''| at spacings \
0.01, 0.005, 0.0025
fp64_third_relative_gap | list<float64>[3] | ratio | full null | the same, relative to |φ'''|
fp64_refined_change | list<float64>[4] |  | full null since=3 | changes from 129 to 257 nodes: of the best gain, its \
scale, the largest sampled −φ'' and the largest sampled |φ'''|; searched paths

depths: example and depth: row depth
task, split, row, example_id
depth | int32 | loops |  | number of loops after which the state is read out
utility | float64 | nats |  | reference utility U(H_t)
option_scores | list<float64> | nats per token | null | length-normalised score of each option; null for solutions
option_logliks | list<float64> | nats | null | summed log likelihood of each option; null for solutions
chosen_option | int32 | index | null | option with the highest normalised score, ties to the first

tokens: reference token and transition: row transition option token
task, split, row, transition
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

paths: example and transition: row transition
task, split, row, transition
gain | list<float64>[257] | nats | full | φ at the nodes 0, 1/256, …, 1
slope | list<float64>[257] | nats | full | φ' at the nodes
curvature | list<float64>[257] | nats | full | φ'' at the nodes
third | list<float64>[257] | nats | full | φ''' at the nodes

certificates: example and transition: row transition
task, split, row, transition
outcome | int8 | code | null | certified class of the update; null if open
prediction_sign | int8 |  | null | certified sign of A + Q; null if open
recovered | bool |  | null | certified sign of φ(1/4) > 0 of a certified finite-step failure; null elsewhere or if \
open
arithmetic | string |  |  | what decided: `fp64`, `balls` (Arb), or `open`: not all is decided
utility | list<float64>[2] | nats | null since=3 | both ends of an enclosure of U(H)
slope | list<float64>[2] | nats | null since=3 | both ends of an enclosure of A
quadratic | list<float64>[2] | nats | null since=3 | both ends of an enclosure of Q
gain | list<float64>[2] | nats | null since=3 | both ends of an enclosure of ΔU
quarter_gain | list<float64>[2] | nats | null since=3 | both ends of an enclosure of φ(1/4) of the exact H + D/4
predicted_scale | float64 | scale |  | α̂ from the middles of A and Q, an exact float64
predicted_gain | list<float64>[2] | nats | null since=3 | both ends of an enclosure of φ at exactly that α̂
L_D | float64 | nats | null | −φ'' is at most this on [0, 1]
safe_scale | float64 | scale | null | every 0 < α up to this has a gain; null unless A > 0 is certain
C | list<float64>[2] | nats | null since=3 | both ends of an enclosure of C(1), the curvature deviation
regret_high | float64 | nats | null | φ(α*) − φ(α̂) is at most this

trace: reference token and depth: row depth option token
task, split, row, example_id, depth, option, token, position, token_id, text_start, text_end
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
gains | list<float32>[3] | nats | null since=3 | log p(y) at H_{t−1} + αD for α = 0.25, 0.5, 0.75, minus that at \
H_{t−1}; null unless t−1 → t is analysed at level grid or full
lens_ids | list<int32> |  | null | the K likeliest tokens, in order; with a lens
lens_probs | list<float32> | probability | null | their probabilities; with a lens
rank | int32 |  | null | rank of the reference token, 1 is the likeliest; with a lens

longer_steps: example and transition: row transition
task, split, row, transition
end_slope | float64 | nats |  | φ'(1): positive where a longer step would have gained more at first
gains | list<float64> | nats |  | φ at the scales 0, 0.05, …, S, where S is `scales_to`
quadratic_scale | float64 | scale |  | the maximiser of Aα + Qα² on [0, S]
quadratic_gain | float64 | nats |  | φ there, without rounding the state
"""
"""Every table: its name, what a row stands for, its key; then its columns: name, type, unit, flags, meaning.

The flags are the level where it is not `quick`, `null`, and `since=N` where version N added the column. A line of names
takes columns as they were declared above. A table that version N added has `: N` after its key.
"""


def _read(schema: str) -> Iterator[Table]:
    declared: dict[str, Column] = {}
    for block in schema.split("\n\n"):
        head, *lines = block.splitlines()
        columns: list[Column] = []
        for line in lines:
            if " | " in line:
                columns.append(_column(*line.split(" | ", 4)))
                declared.setdefault(columns[-1].name, columns[-1])
            else:
                columns += (declared[name] for name in line.split(", "))
        name, per, key, *since = head.split(": ")
        yield Table(name, per, tuple(key.split()), tuple(columns), *map(int, since))


def _column(name: str, kind: str, unit: str, given: str, meaning: str) -> Column:
    element, _, length = kind.removesuffix("]").partition("[")
    flags = {flag: value for flag, _, value in (each.partition("=") for each in given.split())}
    return Column(
        name,
        element,
        unit,
        meaning,
        level=next((level for level in Level if level in flags), Level.QUICK),
        nullable="null" in flags,
        length=int(length) if length else None,
        since=int(flags.get("since", 1)),
    )


TABLES: dict[str, Table] = {table.name: table for table in _read(SCHEMA)}
"""Every table by name; those after `depths` are written only when a run asks for them."""

_TRACE = TABLES["trace"]
TRACE_COLUMNS = _TRACE.columns[_TRACE.names.index("log_prob") :]
"""The columns of `trace` about one loop at one position: H_t is the state after loop t, D_t = H_t − H_{t−1} its step,
z_t the logits, p_t their softmax, v = z_t − z_{t−1}, y the reference token. What needs a loop before the first is null
at depth 1, but H_0 counts as the state before it.
"""
GAIN_SCALES = (0.25, 0.5, 0.75)
"""Where the column `gains` of `trace` has φ of a token."""
MIN_P = 0.1
"""Probabilities below this share of the largest are set to 1/V in `kl_min_p`."""
