"""Published rows joined to the nearest rows of some runs, and what claims over several rows come to there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loopscope.stats import Estimate, Interval
from loopscope.studies.conditions import Condition
from loopscope.studies.paper import Claim, Setting
from loopscope.studies.paper.published_numbers import models
from loopscope.studies.result import Row, TableResult, Value
from loopscope.studies.tables.depth_coverage import DepthRow
from loopscope.studies.verdicts import Verdict, distance, judge, not_comparable, setting_differences


@dataclass(frozen=True)
class Joined:
    """A row of a run beside a published one."""

    row: Row
    differences: tuple[str, ...]
    """What keeps it from being the paper's setting."""


def join(setting: Setting, key: str, rows: Iterable[Row]) -> Joined | None:
    """The nearest row with that key; of equals the first, so that nothing is chosen by how well it agrees."""
    reachable = [(far, row) for row in rows if row.key == key and (far := distance(row.condition, setting)) is not None]
    if not reachable:
        return None
    own = min(reachable, key=lambda entry: entry[0])[1]
    differences = setting_differences(own.condition, setting)
    if isinstance(own, DepthRow):
        depths = ",".join(map(str, models()[setting.model].depths))
        if own.depths != depths:
            differences += (f"its depths are {own.depths} (paper: {depths})",)
    return Joined(own, differences)


def number_of(value: Value) -> tuple[float | None, Interval | None]:
    """A value as a number, and its interval."""
    if isinstance(value, Estimate):
        return value.value, value.interval
    return (None if value is None or isinstance(value, str) else float(value)), None


@dataclass(frozen=True)
class ClaimVerdict:
    """What some runs say to a claim."""

    claim: Claim
    value: float | None
    outcome: Verdict
    verdict: str
    conditions: tuple[Condition, ...]
    """Those of the runs that it was looked for in."""

    @property
    def setting(self) -> str:
        """What the claim is about."""
        rows = self.claim.rows
        return rows[0][0].title if len(rows) == 1 else f"{len(rows)} rows, from {rows[0][0].title}"


def claim_verdict(claim: Claim, computed: Mapping[str, TableResult[Row]]) -> ClaimVerdict:
    """The value of a claim where every row that it is about has a run in the paper's setting, and the verdict."""
    found = [(setting, join(setting, key, computed[claim.study].rows)) for setting, key in claim.rows]
    conditions = tuple(one.row.condition for _, one in found if one is not None)
    missing = [setting.title for setting, one in found if one is None]
    other = [(setting.title, one.differences) for setting, one in found if one is not None and one.differences]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return ClaimVerdict(claim, None, *not_comparable([f"no run has {missing[0]}{more}"]), conditions)
    if other:
        (where, reasons), more = other[0], f" (and so on for {len(other) - 1} more)" if len(other) > 1 else ""
        return ClaimVerdict(claim, None, *not_comparable([f"of {where} {', '.join(reasons)}{more}"]), conditions)
    value = claimed([one.row for _, one in found if one is not None], claim.how, claim.of)
    states = conditions[0].states
    outcome, verdict = judge(claim.quantity, claim.number, claim.printed, claim.unit, value, value, states)
    return ClaimVerdict(claim, value, outcome, verdict, conditions)


def claimed(rows: Sequence[Row], how: str, of: Sequence[str]) -> float | None:
    """What a claim makes of its rows; None where one of them lacks the number."""
    if how == "rows":
        return float(len(rows))
    if how == "present":
        return float(sum(row.value(of[0]) is not None for row in rows))
    columns = [[number_of(row.value(name))[0] for row in rows] for name in of]
    known = [[value for value in column if value is not None] for column in columns]
    if any(len(column) < len(rows) for column in known):
        return None
    first, second = known[0], known[-1]
    if how == "less":
        return sum(first) - sum(second)
    if how == "pooled":
        return sum(a * b for a, b in zip(first, second, strict=True)) / sum(second)
    if len(of) == 2:
        if not all(second):
            return None
        first = [a / b for a, b in zip(first, second, strict=True)]
    if how == "largest":
        return max(map(abs, first))
    if how == "sum":
        return sum(first)
    return min(first) if how == "lowest" else max(first)
