"""The columns of `trace` that describe one loop at one reference position: its state, its step and its prediction.

H_t is the state at the position after loop t, D_t = H_t − H_{t−1} its step, z_t the logits, p_t their softmax,
v = z_t − z_{t−1}, y the reference token. What needs a loop before the first is null at depth 1, but H_0 counts as the
state before it.
"""

from loopscope.store.column_types import Column, ColumnType


def _number(name: str, unit: str, meaning: str) -> Column:
    return Column(name, ColumnType.FLOAT32, unit, meaning)


def _change(name: str, unit: str, meaning: str) -> Column:
    return Column(name, ColumnType.FLOAT32, unit, f"{meaning}; null at depth 1", nullable=True)


def _gain(percent: int) -> Column:
    meaning = f"log p(y) at H_{{t−1}} + {percent / 100:g}·D minus that at H_{{t−1}}; null unless t−1 → t is analysed"
    return Column(f"gain_{percent}", ColumnType.FLOAT32, "nats", f"{meaning} at level grid or full", nullable=True)


MIN_P = 0.1
"""Probabilities below this share of the largest are set to 1/V in `kl_min_p`."""

STATE_COLUMNS = (
    _number("state_norm", "state units", "‖H_t‖"),
    _number("step_norm", "state units", "‖D_t‖"),
    _number("state_cosine", "ratio", "cosine of H_t and H_{t−1}; 0 where one of them is 0"),
    _change("acceleration", "state units", "‖D_t − D_{t−1}‖"),
    _change("step_cosine", "ratio", "cosine of D_t and D_{t−1}, 0 where one of them is 0"),
    Column(
        "gate",
        ColumnType.FLOAT32,
        "probability",
        "λ_t of the exit gate, in the arithmetic of the states; null without a gate",
        nullable=True,
    ),
)

PREDICTION_COLUMNS = (
    _number("log_prob", "nats", "log p_t(y)"),
    Column("top_id", ColumnType.INT32, "", "vocabulary id of the likeliest token"),
    _number("top_prob", "probability", "its probability"),
    _number("margin", "probability", "its probability minus that of the second"),
    _number("entropy", "nats", "entropy of p_t"),
)

CHANGE_COLUMNS = (
    _change("kl_from_previous", "nats", "KL(p_{t−1} ‖ p_t)"),
    _change("kl_to_previous", "nats", "KL(p_t ‖ p_{t−1})"),
    _change(
        "kl_min_p",
        "nats",
        f"KL(p_{{t−1}} ‖ p_t) after probabilities below {MIN_P:g}·max are set to 1/V, renormalised",
    ),
    _change("mean_v", "nats", "mean of v under p_{t−1}; v_reference − mean_v is A of the token, affine readouts"),
    _change("var_v", "nats", "variance of v under p_{t−1}; −var_v/2 is Q of the token, affine readouts"),
    _change("v_reference", "nats", "v of the reference token"),
)

GAIN_SCALES = (0.25, 0.5, 0.75)
GAIN_COLUMNS = tuple(_gain(round(100 * scale)) for scale in GAIN_SCALES)

LENS_COLUMNS = (
    Column("lens_ids", ColumnType.INT32_LIST, "", "the K likeliest tokens, in order; with a lens", nullable=True),
    Column("lens_probs", ColumnType.FLOAT32_LIST, "probability", "their probabilities; with a lens", nullable=True),
    Column("rank", ColumnType.INT32, "", "rank of the reference token, 1 is the likeliest; with a lens", nullable=True),
)

TRACE_COLUMNS = (*PREDICTION_COLUMNS, *STATE_COLUMNS, *CHANGE_COLUMNS, *GAIN_COLUMNS, *LENS_COLUMNS)
