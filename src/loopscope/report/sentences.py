"""Numbers and findings in plain words; every sentence follows from an estimate and its interval."""

import math

from loopscope.path import Outcome
from loopscope.studies.declare import Row

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
        decimals = max(0, 2 - int(f"{size:.2e}".partition("e")[2]))
        return f"{mark}{size:.{decimals}f}"
    mantissa, _, power = f"{size:.2e}".partition("e")
    shortened = mantissa.rstrip("0").rstrip(".")
    return f"{mark}{shortened}×10{str(int(power)).translate(_SUPERSCRIPT)}"


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
                "right, the step too long. The quadratic model, computed with the reference, would have "
                f"stopped at {scale(predicted)}{known}"
            )


def of_certificates(row: Row) -> str:
    """How many outcomes no rounding of the readout can overturn, and how many are recorded otherwise."""
    said = f"No rounding of the readout can overturn {row['certified']} of {row['updates']} outcomes."
    return said + (f" {row['contradicted']} of them are recorded otherwise." if row["contradicted"] else "")


def of_decline(peak: int, decline: tuple[int, int] | None, last: int) -> str:
    """Where more loops stop helping."""
    best = f"Mean utility is highest after {peak} {'loop' if peak == 1 else 'loops'}."
    if decline is None:
        more = " It is still the last depth measured." if peak == last else ""
        return f"{best}{more} No depth lies clearly below the best one before it."
    reference, depth = decline
    return f"{best} By depth {depth} it has clearly fallen below what depth {reference} had reached."
