"""Numbers and findings in plain words; every sentence follows from an estimate and its interval."""

import math
from dataclasses import dataclass

from loopscope.path import Outcome
from loopscope.stats import Estimate
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


@dataclass(frozen=True)
class Finding:
    """What one update did to all questions of a set, in counts."""

    update: str
    """`4→5`."""
    kind: str
    """`solution` or `options`."""
    questions: int
    harmful: int
    failures: int
    """Finite-step failures."""
    predicted: int | None
    """Of these, how many gain at the scale that slope and curvature predict; None where it was not measured."""
    quarter: int | None
    """How many gain at a quarter of the step; None likewise."""

    def title(self, model: str) -> str:
        """The finding in a few words."""
        where = f"{model}: loop {self.update}"
        if self.failures:
            return f"{where} goes too far on {self.failures} of {self.questions} questions"
        if self.harmful:
            return f"{where} goes the wrong way on {self.harmful} of {self.questions} questions"
        return f"{where} harms no question"

    def sentence(self) -> str:
        """The finding in one sentence."""
        one, many = ("the right option", "the right options") if self.kind == "options" else ("reference", "references")
        if not self.harmful:
            return f"Loop {self.update} makes none of the {self.questions} {many} less likely."
        if self.kind == "options":
            said = f"Loop {self.update} makes {one} less likely for {self.harmful} of {self.questions} questions"
        else:
            said = f"Loop {self.update} makes {self.harmful} of {self.questions} {many} less likely"
        if not self.failures:
            return f"{said}; none of these updates starts in a helpful direction."
        share = percent(self.failures / self.harmful)
        said += f"; in {self.failures} of these {self.harmful} ({share}) the direction was right and the step too long"
        if self.predicted is None:
            return f"{said}."
        won = _count(self.predicted, self.failures)
        return f"{said}, and the length that slope and curvature predict would have gained in {won}."

    def meaning(self) -> str:
        """What that means, in two sentences."""
        if self.failures:
            which = "the right option" if self.kind == "options" else "the reference"
            return (
                "One more loop is a direction and a length: in these cases the direction helps and the length "
                f"overshoots, so a shorter step the same way would have made {which} more likely. Slope and curvature "
                "at the start of the step predict it, but they are made with the answer at hand: they explain "
                "failures and do not choose steps."
            )
        if self.harmful:
            return (
                "Where this loop harms, it starts in the wrong direction, so a short step the same way harms as well. "
                "It is the direction that fails here, not the length of the step."
            )
        return (
            "At this depth one more loop does no harm to any question. What more loops do is seen at the other updates."
        )


def _count(part: int, whole: int) -> str:
    """A part in words where it is all or nothing.

    >>> _count(3, 3), _count(0, 3), _count(2, 3), _count(1, 1)
    ('all 3', 'none of them', '2 of them', 'it')
    """
    if part == whole:
        return "it" if whole == 1 else f"all {whole}"
    return f"{part} of them" if part else "none of them"


def of_certificates(row: Row) -> str:
    """How many outcomes no rounding of the readout can overturn, and how many are recorded otherwise."""
    said = f"No rounding of the readout can overturn {row['certified']} of {row['updates']} outcomes."
    return said + (f" {row['contradicted']} of them are recorded otherwise." if row["contradicted"] else "")


def clearly(estimate: Estimate) -> int:
    """1 where the whole interval lies above zero, -1 where it lies below, 0 where it does neither."""
    interval = estimate.interval
    if interval is None:
        return 0
    return (interval.low > 0) - (interval.high < 0)


def of_decline(peak: int, decline: tuple[int, int] | None, last: int) -> str:
    """Where more loops stop helping."""
    best = f"Mean utility is highest after {peak} {'loop' if peak == 1 else 'loops'}."
    if decline is None:
        more = " It is still the last depth measured." if peak == last else ""
        return f"{best}{more} No depth lies clearly below the best one before it."
    reference, depth = decline
    return f"{best} By depth {depth} it has clearly fallen below what depth {reference} had reached."
