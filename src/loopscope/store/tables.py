"""The tables of a run directory, column by column, and the version of this schema.

`examples` holds the texts, so that a run can be read without its data set; `questions` one update of one example
(Sections 3 and 4 of the paper; the `fp64_` columns: Appendices E.5 and E.9); `depths` the reference utility at every
requested depth (Appendix E.1); `tokens` the quantities of each reference token alone (E.8); `paths` φ and three
derivatives at the 257 nodes of the FP64 analysis (E.5); `certificates` enclosures and verdicts that include rounding;
`trace` every reference position after every loop; `trajectories` utilities after updates that were changed;
`other_paths` declares three more, `as_in_paper` that of the paper's protocol. docs/run-directory.md lists all of them.
"""

from loopscope.path.grids import CURVATURE_SCALES, DIFFERENCE_SPACINGS, GRID, PATH_NODES
from loopscope.store.as_in_paper import as_in_paper
from loopscope.store.column_types import Column, ColumnType, Level, Table
from loopscope.store.key_columns import DEPTH, IDENTITY, SOURCE_ROW, TRANSITION
from loopscope.store.other_paths import INTERPOLATION, LONGER_STEPS, RENORMALISED
from loopscope.store.trace_columns import TRACE_COLUMNS

SCHEMA_VERSION = 1
"""Raised by one whenever a column is added, dropped, renamed or given another meaning."""

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
        DEPTH,
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


AS_IN_PAPER = as_in_paper(QUESTIONS)


_TOKEN = (
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
)

TOKENS = Table(
    name="tokens",
    per="reference token and transition",
    key=("row", "transition", "option", "token"),
    columns=(
        *IDENTITY,
        TRANSITION,
        *_TOKEN,
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
            "exit CDF of the gate through depth t; its confidence at t, where the policy is a threshold on that",
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


def _ends(name: str, unit: str, meaning: str) -> tuple[Column, Column]:
    return (
        Column(f"{name}_low", ColumnType.FLOAT64, unit, f"{meaning}: no more than the true value", nullable=True),
        Column(f"{name}_high", ColumnType.FLOAT64, unit, f"{meaning}: no less than the true value", nullable=True),
    )


def _certified(name: str, unit: str, meaning: str) -> Column:
    return Column(name, ColumnType.FLOAT64, unit, meaning, nullable=True)


CERTIFICATES = Table(
    name="certificates",
    per="example and transition",
    key=("row", "transition"),
    columns=(
        *IDENTITY,
        TRANSITION,
        Column("outcome", ColumnType.INT8, "code", "certified class of the update; null if open", nullable=True),
        Column("prediction_sign", ColumnType.INT8, "", "certified sign of A + Q; null if open", nullable=True),
        Column(
            "recovered",
            ColumnType.BOOL,
            "",
            "certified sign of φ(1/4) > 0 of a certified finite-step failure; null elsewhere or if open",
            nullable=True,
        ),
        Column(
            "arithmetic", ColumnType.STRING, "", "what decided: `fp64`, `balls` (Arb), or `open`: not all is decided"
        ),
        *_ends("utility", "nats", "U(H)"),
        *_ends("slope", "nats", "A"),
        *_ends("quadratic", "nats", "Q"),
        *_ends("prediction", "nats", "A + Q"),
        *_ends("gain", "nats", "ΔU"),
        *_ends("quarter_gain", "nats", "φ(1/4) of the exact H + D/4"),
        Column("predicted_scale", ColumnType.FLOAT64, "scale", "α̂ from the middles of A and Q, an exact float64"),
        *_ends("predicted_gain", "nats", "φ at exactly that α̂"),
        *_ends("kl", "nats", "KL(p(0)‖p(1)), mean over tokens, then over options"),
        _certified("L_D", "nats", "−φ'' is at most this on [0, 1]"),
        _certified("safe_scale", "scale", "every 0 < α up to this has a gain; null unless A > 0 is certain"),
        _certified("safe_gain_low", "nats", "the gain at `safe_scale` is at least this"),
        *_ends("C", "nats", "C(1), the curvature deviation"),
        _certified("residual_high", "nats", "|φ' − q'| is at most this on [0, 1]"),
        _certified("regret_high", "nats", "φ(α*) − φ(α̂) is at most this"),
    ),
)


TRACE = Table(
    name="trace",
    per="reference token and depth",
    key=("row", "depth", "option", "token"),
    columns=(*IDENTITY, DEPTH, *_TOKEN, *TRACE_COLUMNS),
)


TRAJECTORIES = Table(
    name="trajectories",
    per="example, first changed update and depth",
    key=("row", "depth", "transition", "onwards", "scale"),
    columns=(
        *IDENTITY,
        DEPTH,
        TRANSITION,
        Column("onwards", ColumnType.BOOL, "", "whether every later update is changed, too"),
        Column("scale", ColumnType.FLOAT64, "scale", "α: the update becomes H + α·D, and the loops go on from there"),
        Column("utility", ColumnType.FLOAT64, "nats", "reference utility after `depth` loops"),
    ),
)


TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        EXAMPLES,
        QUESTIONS,
        DEPTHS,
        TOKENS,
        PATHS,
        CERTIFICATES,
        TRACE,
        LONGER_STEPS,
        RENORMALISED,
        TRAJECTORIES,
        AS_IN_PAPER,
        INTERPOLATION,
    )
}
"""Every table by name; those after `depths` are written only when a run asks for them."""
