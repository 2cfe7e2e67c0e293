"""What later loops make of a changed update: one update at another scale, or every update from there on.

A trajectory is compared with the one of full steps, at the same depth, question by question. Right after the first
changed update the difference is its immediate gain over the full step; at the deepest loop it is what is left of that,
or what further changed updates have added. "Harmed" questions are those that the full step made worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from loopscope.errors import setting
from loopscope.stats import Bootstrap, Estimate, Mean, Ratio, Statistic
from loopscope.studies.conditions import Condition, at
from loopscope.studies.records import Floats, Records, of_set
from loopscope.studies.result import COUNT, IDENTITY, Panel, Row, TableResult, column, fixed, label, percent
from loopscope.studies.usable_conditions import notes_on


@dataclass(frozen=True)
class Course:
    """The trajectories of one condition with the same updates changed.

    Attributes:
        condition: its transition is the first changed update.
        onwards: whether every later update is changed, too.
        scale: of the changed updates.
        depths: after the first changed update.
        utility: [N, depths].
        full: the same with full steps; NaN at depths that the run does not store.
        before: utility before the first changed update, [N].
    """

    condition: Condition
    onwards: bool
    scale: float
    depths: tuple[int, ...]
    utility: Floats
    full: Floats
    before: Floats

    @property
    def gain(self) -> Floats:
        """Over full steps, [N, depths]."""
        return self.utility - self.full

    @property
    def changed(self) -> str:
        """Which updates are changed."""
        if not self.onwards:
            return "one update"
        return "every update" if self.condition.transition == 0 else "from there on"


@dataclass(frozen=True)
class TrajectoryRow(Row):
    """One first update, one scale, changed once or from there on."""

    changed: str
    scale: float
    last_depth: int
    immediate: Estimate
    """Mean gain over the full step right after the first changed update."""
    last: Estimate
    """Mean gain over full steps at the deepest loop."""
    survival: Estimate
    """The second over the first."""
    apart: Estimate
    """Mean sum of the immediate gains that the changed updates have one at a time, where all of them are known."""
    harmed: int
    """Questions that the full step made worse."""
    harmed_immediate: Estimate
    harmed_survival: Estimate
    """The same over them."""
    still_better: Estimate
    """Of the harmed questions that gained immediately, the share that is still better at the deepest loop."""


_ESTIMATES = (
    *("immediate", "last", "survival", "apart"),
    *("harmed_immediate", "harmed_survival", "still_better"),
)
_DETAIL = (*IDENTITY, label("changed", "Changed"), column("scale", "α", fixed(2)))
PANELS = (
    Panel(
        (
            *_DETAIL,
            column("immediate", "Immediate gain\n[95% CI]", fixed(3, 1e3, interval=True)),
            column("last", "Gain at last depth\n[95% CI]", fixed(3, 1e3, interval=True)),
            column("last_depth", "Last\ndepth", COUNT),
            column("survival", "Survives (%)\n[95% CI]", percent(1, interval=True)),
            column("apart", "Sum of single\nimmediate gains", fixed(3, 1e3)),
        ),
        title="(a) All questions",
    ),
    Panel(
        (
            *_DETAIL,
            column("harmed", "Harmed", COUNT),
            column("harmed_immediate", "Immediate gain", fixed(3, 1e3)),
            column("harmed_survival", "Survives (%)\n[95% CI]", percent(1, interval=True)),
            column("still_better", "Still better (%)\n[95% CI]", percent(1, interval=True)),
        ),
        title="(b) Questions that the full step made worse",
    ),
)


def trajectories(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[TrajectoryRow]:
    """One row per first changed update, scale, and whether later updates are changed, too."""
    courses = list(changed_courses(records))
    rows = tuple(_row(course, _apart(course, courses), bootstrap or Bootstrap()) for course in courses)
    notes = notes_on(dict.fromkeys(course.condition for course in courses))
    if not courses:
        notes += (records.nothing(nothing_changed()),)
    return TableResult(
        study="trajectories",
        label="tab:trajectories",
        title="What later loops make of a changed update",
        caption=(
            "Mean utility over that of full steps at the same depth, in units of 0.001 nats: right after the first "
            "changed update and at the deepest loop; the share of the one that is left in the other; and what the "
            "changed updates gain immediately when only one of them is changed, added up. Paired 95% intervals "
            "resample questions; a share of an immediate gain near zero means little."
        ),
        rows=rows,
        panels=PANELS,
        notes=notes,
    )


def nothing_changed() -> str:
    """Why there is nothing to show."""
    return f"no run follows changed updates: measure with {setting('trajectories', '0.25,0.5')}"


def changed_courses(records: Records) -> Iterator[Course]:
    """The trajectories of every run that has some."""
    for run, condition in records.conditions():
        if not run.manifest.settings.get("trajectories"):
            continue
        here = run.trajectories.filter(of_set(condition)).collect()
        full = {depth: _by_row(rows) for (depth,), rows in run.depths.filter(of_set(condition)).group_by("depth")}
        groups = here.sort("transition", "onwards", "scale").group_by(
            "transition", "onwards", "scale", maintain_order=True
        )
        for (first, onwards, scale), rows in groups:
            depths = tuple(sorted(rows["depth"].unique().to_list()))
            utility = np.stack([_by_row(rows.filter(pl.col("depth") == depth)) for depth in depths], axis=1)
            nothing = np.full(len(utility), np.nan)
            yield Course(
                at(condition, first, len(utility)),
                onwards,
                scale,
                depths,
                utility,
                np.stack([full.get(depth, nothing) for depth in depths], axis=1),
                full.get(first, nothing),
            )


def _by_row(rows: pl.DataFrame) -> Floats:
    return rows.sort("row")["utility"].to_numpy()


def _apart(course: Course, courses: Sequence[Course]) -> Floats | None:
    """The immediate gains of the changed updates one at a time, added up by question."""
    first = course.condition.transition
    assert first is not None
    if not course.onwards:
        return course.gain[:, 0]
    single = {
        other.condition.transition: other.gain[:, 0]
        for other in courses
        if not other.onwards
        and other.scale == course.scale
        and at(other.condition, first, len(other.utility)) == course.condition
    }
    if any(start not in single for start in range(first, course.depths[-1])):
        return None
    added: Floats = np.sum([single[start] for start in range(first, course.depths[-1])], axis=0)
    return added


def _row(course: Course, apart: Floats | None, bootstrap: Bootstrap) -> TrajectoryRow:
    immediate, last = course.gain[:, 0], course.gain[:, -1]
    harmed = course.full[:, 0] < course.before
    gained = harmed & (immediate > 0)
    statistics: dict[str, Statistic] = {"last": Mean(last)}
    if np.isfinite(immediate).all():  # else the run does not store the depth right after the first changed update
        of_harmed = np.where(harmed, immediate, 0.0)
        statistics |= {
            "immediate": Mean(immediate),
            "survival": Ratio(last, immediate),
            "harmed_immediate": Ratio(of_harmed, harmed),
            "harmed_survival": Ratio(np.where(harmed, last, 0.0), of_harmed),
            "still_better": Ratio(gained & (last > 0), gained),
        }
    if apart is not None and np.isfinite(apart).all():
        statistics["apart"] = Mean(apart)
    estimates = bootstrap.estimate(statistics)
    unknown = Estimate(None, len(last))
    return TrajectoryRow(
        course.condition,
        f"{course.changed}, {course.scale:g}",
        changed=course.changed,
        scale=course.scale,
        last_depth=course.depths[-1],
        harmed=int(harmed.sum()),
        **{name: estimates.get(name, unknown) for name in _ESTIMATES},
    )
