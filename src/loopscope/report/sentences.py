"""Numbers and findings in plain words; every sentence follows from an estimate and its interval."""

import math

from loopscope.path import Outcome
from loopscope.stats import Estimate
from loopscope.studies.tables.certificates import CertificateRow

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, *, sign: bool = False) -> str:
    """A number with three significant digits, a true minus, and a power of ten where it is very small or large.

    >>> number(-0.01234), number(0.000017, sign=True), number(0.0)
    ('−0.0123', '+1.7×10⁻⁵', '0')
    """
    if value == 0:
        return "0"
    size = abs(value)
    mark = "−" if value < 0 else "+" if sign else ""
    if 1e-3 <= size < 1e4:
        decimals = max(0, 2 - _exponent(size))
        return f"{mark}{size:.{decimals}f}"
    mantissa, _, power = f"{size:.2e}".partition("e")
    shortened = mantissa.rstrip("0").rstrip(".")
    return f"{mark}{shortened}×10{str(int(power)).translate(_SUPERSCRIPT)}"


def _exponent(size: float) -> int:
    return int(f"{size:.2e}".partition("e")[2])


def signed(value: float) -> str:
    """The same with a plus sign."""
    return number(value, sign=True)


def scale(value: float) -> str:
    """A scale α.

    >>> scale(0.25), scale(1.0), scale(0.12345), scale(math.nan)
    ('0.25', '1', '0.123', '—')
    """
    return f"{round(value, 3):g}" if math.isfinite(value) else "—"


def of_update(outcome: Outcome, slope: float, gain: float, predicted: float, best: float) -> str:
    """What one update did to one question; the page of the report says the same.

    Args:
        outcome: its class.
        slope: A.
        gain: ΔU.
        predicted: α̂.
        best: the best scale; NaN where it is not known.
    """
    match outcome:
        case Outcome.PROGRESSING:
            more = f" It would have gained most at scale {scale(best)}." if best < 1 else ""
            return f"Progress: the update raises the utility by {number(gain)} nats.{more}"
        case Outcome.NEUTRAL:
            return "Neutral: the utility is the same at both ends."
        case Outcome.DIRECTIONAL_FAILURE:
            start = "downhill" if slope < 0 else "level"
            return (
                f"Directional failure: the update starts {start} and ends {number(-gain)} nats lower. "
                "The direction was wrong from the first step."
            )
        case _:
            known = f"; the best scale is {scale(best)}." if math.isfinite(best) else "."
            return (
                f"Finite-step failure: the update starts uphill and ends {number(-gain)} nats lower. The direction was "
                "right, the step too long. The quadratic model, made from the reference's own utility, would have "
                f"stopped at {scale(predicted)}{known}"
            )


def percent(share: float) -> str:
    """A share as a percentage.

    >>> percent(0.1234), percent(1.0)
    ('12.3%', '100%')
    """
    return f"{100 * share:.1f}%".replace(".0%", "%")


def of_layout(sensitive: int, updates: int, margin: float) -> str:
    """How many outcomes the batch layout could have changed.

    >>> of_layout(3, 50, 0.005)
    '3 of 50 updates are nearer to zero than the 0.00500 nats that another batch layout may move them.'
    """
    within = f"the {number(margin)} nats that another batch layout may move them"
    return f"{sensitive} of {updates} updates are nearer to zero than {within}."


def of_certificates(row: CertificateRow) -> str:
    """How many outcomes no rounding of the readout can overturn, and how many are recorded otherwise."""
    said = f"No rounding of the readout can overturn {row.certified} of {row.updates} outcomes."
    return said + (f" {row.contradicted} of them are recorded otherwise." if row.contradicted else "")


def clearly(estimate: Estimate) -> int:
    """1 where the whole interval lies above zero, -1 where it lies below, 0 where it does neither."""
    interval = estimate.interval
    if interval is None:
        return 0
    return (interval.low > 0) - (interval.high < 0)


def of_gain(estimate: Estimate, subject: str, kind: str) -> str:
    """What a mean gain says of the reference; `subject` is the step that was taken."""
    if estimate.value is None:
        return f"There is no question to average {subject} over."
    reference = "the right option" if kind == "options" else "the reference solution"
    match clearly(estimate):
        case 1:
            return f"On average {subject} makes {reference} more likely."
        case -1:
            return f"On average {subject} makes {reference} less likely."
    if estimate.interval is None:
        return f"Too few questions to say what {subject} does on average."
    return f"Whether {subject} helps or harms on average is not clear: the interval contains zero."


def of_oracle(estimate: Estimate) -> str:
    """What a choice made with the reference at hand is worth; it can always stay, so it never loses."""
    if not estimate.value:
        return "No question gains: staying is best for all of them."
    return "It never loses, since it may stay: this is what knowing the reference would be worth."


def of_accuracy(estimate: Estimate, predictor: str) -> str:
    """How far a sign goes beyond a coin; it is taken with the reference at hand, so it explains and does not decide."""
    if estimate.value is None:
        return "No question to judge by."
    right = percent(estimate.value)
    low = estimate.interval.low if estimate.interval else None
    beyond = "better than a coin" if low is not None and low > 0.5 else "not clearly better than a coin"
    return f"Taken with the reference, {predictor} has the sign of the gain for {right} of the questions: {beyond}."


def of_share(finite: int, harmful: int, n: int) -> str:
    """Which of the two kinds of failure the harmful updates are."""
    if not harmful:
        return f"None of the {n} updates lowers the utility."
    lower = "lowers" if harmful == 1 else "lower"
    if not finite:
        return f"{harmful} of {n} updates {lower} the utility, and none of these starts in a helpful direction."
    return (
        f"{harmful} of {n} updates {lower} the utility; {finite} of these {'starts' if finite == 1 else 'start'} in a "
        "helpful direction, so a short enough step would have helped."
    )


def of_recovery(recovered: int, failures: int) -> str:
    """What a quarter of the displacement does to the finite-step failures."""
    if not failures:
        return "There is no finite-step failure to recover."
    one = failures == 1
    return (
        f"A quarter of the step turns {recovered} of {failures} finite-step {'failure' if one else 'failures'} "
        "into a gain."
    )


def of_decline(peak: int, decline: tuple[int, int] | None, last: int) -> str:
    """Where more loops stop helping."""
    best = f"Mean utility is highest after {peak} {'loop' if peak == 1 else 'loops'}."
    if decline is None:
        more = " It is still the last depth measured." if peak == last else ""
        return f"{best}{more} No depth lies clearly below the best one before it."
    reference, depth = decline
    return f"{best} By depth {depth} it has clearly fallen below what depth {reference} had reached."
