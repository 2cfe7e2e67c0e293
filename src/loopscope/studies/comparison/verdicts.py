"""One line on a run's number beside a published one.

Words of agreement and disagreement belong to the same setting alone. Beside any other run stands what differs.
"""

from enum import StrEnum

from loopscope.studies.paper import PaperCell
from loopscope.studies.result import Value


class Verdict(StrEnum):
    """How a comparison falls out."""

    DIGITS = "digits"
    """Same setting, equal to the printed digits."""
    COVERED = "covered"
    """Same setting, the run's interval covers the published number."""
    OUTSIDE = "outside"
    """Same setting, the published number lies outside the run's interval."""
    DIFFERS = "differs"
    """Same setting, another number or text, and no interval to judge by."""
    UNDEFINED = "undefined"
    """The run defines no such number: an empty population, a lower level of measurement."""
    OTHER = "other"
    """Another setting."""


def verdict_of(
    cell: PaperCell,
    value: Value,
    number: float | None,
    covers: bool | None,
    differences: tuple[str, ...],
    caveat: str,
) -> tuple[Verdict, str]:
    """The verdict and its sentence."""
    if differences:
        return Verdict.OTHER, f"not comparable because of {', '.join(differences)}: shown beside it only"
    outcome, sentence = _same_setting(cell, value, number, covers)
    return outcome, f"{sentence}; {caveat}" if caveat else sentence


def _same_setting(cell: PaperCell, value: Value, number: float | None, covers: bool | None) -> tuple[Verdict, str]:
    if cell.printed is None:
        same = (value or "---") == cell.text.replace("->", "→")
        return (Verdict.DIGITS, "reproduced") if same else (Verdict.DIFFERS, f"differs: {value or '—'}")
    if number is None:
        return Verdict.UNDEFINED, "not defined in this run"
    if cell.printed.agrees(number / cell.unit):
        return Verdict.DIGITS, "reproduced to the printed digits"
    if covers:
        return Verdict.COVERED, "consistent: the run's interval covers it"
    printed = float(cell.printed.decimal)
    relative = f" ({(number / cell.unit - printed) / abs(printed):+.1%})" if printed else ""
    off = f"{number / cell.unit - printed:+.3g}{relative}"
    if covers is None:
        return Verdict.DIFFERS, f"differs by {off}"
    return Verdict.OUTSIDE, f"not reproduced: outside the run's interval, {off}"
