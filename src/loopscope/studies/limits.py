"""`--fail-if`: conditions on the differences between two runs, `NAME OP NUMBER`, and whether they are met.

    share > +0.02            the difference itself: second run minus first
    gain.high < 0            an end of its interval, `.low` or `.high`: here, clearly lower
    share > 0.02, changed > 0.1   several, any of which fails

Nothing of it is evaluated as code.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.stats import Estimate
from loopscope.studies.metrics import CHANGED, NAMES, words_of

LONGEST = 2_000
"""Characters of all conditions together."""
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
BOUNDS = ("low", "high")

_CONDITION = re.compile(
    r"\s*(?P<name>[A-Za-z_]+)(?:\.(?P<bound>[A-Za-z_]+))?\s*(?P<operator>[<>]=?)\s*"
    r"(?P<number>[+−-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?=[\s,]|$)\s*,?",
    re.ASCII,
)


@dataclass(frozen=True)
class Limit:
    """One condition under which a comparison fails."""

    name: str
    bound: str
    """`low` or `high` for an end of the interval; empty for the difference itself."""
    operator: str
    number: float

    def __str__(self) -> str:
        return f"{self.name}{'.' if self.bound else ''}{self.bound} {self.operator} {self.number:+g}"

    def met(self, difference: Estimate) -> bool | None:
        """Whether a difference meets it; None where it has no value, or no interval and an end of it is asked for."""
        value = self.read(difference)
        return None if value is None else OPERATORS[self.operator](value, self.number)

    def read(self, difference: Estimate) -> float | None:
        """The number that is compared."""
        if not self.bound:
            return difference.value
        return None if difference.interval is None else float(getattr(difference.interval, self.bound))


@dataclass(frozen=True)
class Check:
    """A condition on one update."""

    limit: Limit
    where: str
    """Evaluation set and update."""
    value: float | None
    met: bool | None

    def __str__(self) -> str:
        state = {True: "met", False: "not met", None: "not decided: no value"}[self.met]
        value = "" if self.value is None else f"{self.value:+.6g}, "
        return f"{self.limit} at {self.where}: {value}{state}"


def parse_limits(given: str | Sequence[str] | None) -> tuple[Limit, ...]:
    """Conditions from text; several stand one after the other, with or without commas, or in a list."""
    if given is None:
        return ()
    pieces = [given] if isinstance(given, str) else given
    if not isinstance(pieces, Iterable) or not all(isinstance(piece, str) for piece in pieces):
        raise LoopscopeError(f"{setting('fail_if', given)} is no text: {_usage()}")
    text = " ".join(pieces)
    if len(text) > LONGEST:
        raise LoopscopeError(f"{setting('fail_if')} has {len(text):,} characters: at most {LONGEST:,} are read")
    found, start = [], 0
    while text[start:].strip():
        match = _CONDITION.match(text, start)
        if match is None:
            raise LoopscopeError(f"{setting('fail_if')}: {shown(text[start:].strip())} is no condition: {_usage()}")
        found.append(_limit(match))
        start = match.end()
    if not found and pieces:
        raise LoopscopeError(f"{setting('fail_if', text)} holds no condition: {_usage()}")
    return tuple(found)


def _limit(match: re.Match[str]) -> Limit:
    name, bound = match["name"].lower(), (match["bound"] or "").lower()
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise LoopscopeError(f"{setting('fail_if')} names {shown(match['name'])}: {hint}names are {', '.join(NAMES)}")
    if bound and bound not in BOUNDS:
        raise LoopscopeError(f"{setting('fail_if')}: {name}.{bound} is not known: write {name}.low or {name}.high")
    return Limit(name, bound, match["operator"], float(match["number"].replace("−", "-")))


def _usage() -> str:
    return (
        f"write NAME OP NUMBER, e.g. share > +0.02, or NAME.low and NAME.high for an end of the interval; "
        f"several with commas. OP is {' '.join(OPERATORS)}; names are {', '.join(NAMES)}"
    )


def require_known(limits: Iterable[Limit], filled: Iterable[str]) -> None:
    """A condition on something that neither update has would never fail: that is a mistake of whoever wrote it."""
    known = set(filled) | {CHANGED}
    for limit in limits:
        if limit.name not in known:
            remedy = (
                f"measure both with {setting('level', 'grid')}"
                if words_of(limit.name).steps
                else "it is about tasks with options"
            )
            raise LoopscopeError(f"{setting('fail_if')}: {limit.name} is not in both runs: {remedy}")
