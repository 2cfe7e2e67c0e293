"""Gains of changed updates over the loops that follow, beside the trajectory of full steps."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from loopscope.stats import Bootstrap, Mean
from loopscope.studies.figures.style import (
    BLACK,
    SERIES_COLOURS,
    SERIES_MARKERS,
    FigureResult,
    drawing,
    empty_figure,
    literal,
    paper_style,
)
from loopscope.studies.records import Records
from loopscope.studies.tables.trajectories import Course, changed_courses, nothing_changed
from loopscope.studies.usable_conditions import Selection, notes_on

TITLE = "Changed updates and the loops after them"
TALLEST = 8.5
"""Inches of all panels below each other in one column."""
PREFERRED = 0.25
"""The scale that is drawn where a run has several; else the smallest one above 0."""


def trajectories(records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
    """Two panels per evaluation set: one update changed, and every update from there on."""
    courses = list(changed_courses(records))
    if not courses:
        return empty_figure("trajectories", TITLE, records, Selection((), (records.nothing(nothing_changed()),)))
    sets: dict[str, list[Course]] = {}
    for course in courses:
        sets.setdefault(f"{course.condition.model_title} {course.condition.set_title}", []).append(course)
    drawn = {name: [course for course in group if course.scale == _scale(group)] for name, group in sets.items()}
    with paper_style():
        figure = _draw(drawn, bootstrap or Bootstrap())
    return FigureResult(
        "trajectories",
        TITLE,
        f"Mean utility over that of full steps at the same depth, with {(bootstrap or Bootstrap()).level:.0%} "
        "question-bootstrap bands: one update is taken at the scale named, or every update from there on. Lines begin "
        "right after the first changed update.",
        figure,
        {"panels": [_described(course) for group in drawn.values() for course in group]},
        records.inputs(),
        notes_on(dict.fromkeys(course.condition for course in courses)),
    )


def _scale(group: list[Course]) -> float:
    scales = sorted({course.scale for course in group})
    return PREFERRED if PREFERRED in scales else next((scale for scale in scales if scale > 0), scales[0])


def _described(course: Course) -> dict[str, Any]:
    return {
        "condition": str(course.condition),
        "changed": course.changed,
        "scale": course.scale,
        "depths": list(course.depths),
        # None at depths whose utility with full steps the run does not store.
        "mean_gain": [None if isnan(mean) else float(mean) for mean in course.gain.mean(axis=0)],
    }


def _draw(sets: dict[str, list[Course]], bootstrap: Bootstrap) -> Figure:
    narrow = drawing().narrow
    height = min(3.6, TALLEST / len(sets)) if narrow else 1.9
    figure = Figure(figsize=(drawing().width, 0.4 + height * len(sets)), layout="constrained")
    if narrow:
        grid = figure.subplots(2 * len(sets), 1).reshape(len(sets), 2)
    else:
        grid = figure.subplots(len(sets), 2, squeeze=False, sharey="row")
    starts = sorted({course.condition.update for group in sets.values() for course in group})
    looks = {start: index % len(SERIES_COLOURS) for index, start in enumerate(starts)}
    for axes_row, (name, group) in zip(grid, sets.items(), strict=True):
        for axes, onwards in zip(axes_row, (False, True), strict=True):
            for course in group:
                if course.onwards == onwards:
                    _line(axes, course, looks[course.condition.update], bootstrap)
            axes.axhline(0, color=BLACK, linewidth=0.6)
            changed = "every update from there on" if onwards else "one update"
            axes.set_title(f"{literal(name)}\n{changed} at α = {group[0].scale:g}")
            axes.set_xlabel("Depth (loops)")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in axes_row if narrow else axes_row[:1]:
            axes.set_ylabel("Gain over full steps (nats)" if not narrow else "Gain (nats)")
    handles = [
        Line2D([], [], color=SERIES_COLOURS[look], marker=SERIES_MARKERS[look], markersize=3.5, label=literal(start))
        for start, look in looks.items()
    ]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=min(len(handles), 3 if narrow else 6),
        title="first changed update",
    )
    return figure


def _line(axes: Axes, course: Course, look: int, bootstrap: Bootstrap) -> None:
    known = [index for index in range(len(course.depths)) if np.isfinite(course.gain[:, index]).all()]
    depths, gains = [course.depths[index] for index in known], course.gain[:, known]
    estimates = bootstrap.estimate({index: Mean(gains[:, index]) for index in range(len(known))})
    means = gains.mean(axis=0)
    low = [e.interval.low if e.interval else mean for e, mean in zip(estimates.values(), means, strict=True)]
    high = [e.interval.high if e.interval else mean for e, mean in zip(estimates.values(), means, strict=True)]
    axes.fill_between(depths, low, high, color=SERIES_COLOURS[look], alpha=0.18, linewidth=0)
    axes.plot(depths, means, color=SERIES_COLOURS[look], marker=SERIES_MARKERS[look], markersize=2.8)
