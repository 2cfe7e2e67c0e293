"""The FP64 columns of `questions`: one path analysed with an FP64 readout (Appendices E.5 and E.9)."""

from loopscope.path.grids import DIFFERENCE_SPACINGS
from loopscope.store.columns import Column, ColumnType
from loopscope.store.levels import Level

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
