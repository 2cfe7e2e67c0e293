"""Gain over scales beyond the proposed step, and where the best scale lies (`measure --scales-to S`)."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loopscope.path import scales_up_to
from loopscope.stats import Bootstrap, Mean
from loopscope.studies.figures.style import (
    BLACK,
    GREY,
    SERIES_COLOURS,
    SERIES_MARKERS,
    FigureResult,
    drawing,
    empty_figure,
    names_of,
    panel_letter,
    paper_style,
    shared_model,
)
from loopscope.studies.records import Floats, Records, matrix
from loopscope.studies.tables.longer_steps import best_scales, with_longer_steps

TITLE = "Steps longer than the proposed one"
_EVERY = 5
"""A marker at every fifth scale."""


def longer_steps(records: Records, bootstrap: Bootstrap | None = None) -> FigureResult:
    """One line per condition in both panels."""
    found = with_longer_steps(records)
    if not found.selection.kept:
        return empty_figure("longer-steps", TITLE, records, found.selection)
    conditions = [updates.condition for updates in found.selection.kept]
    frames = [found.frames[condition] for condition in conditions]
    gains = [matrix(frame["gains"]) for frame in frames]
    curves = [_curve(each, bootstrap or Bootstrap()) for each in gains]
    best = [best_scales(each) for each in gains]
    shares = [_shares(scales, curve["scale"]) for scales, curve in zip(best, curves, strict=True)]
    with paper_style():
        narrow = drawing().narrow
        height = (4.2 if narrow else 2.1) + (0.14 if narrow else 0.08) * len(conditions)
        figure = Figure(figsize=(drawing().width, height), layout="constrained")
        left, right = figure.subplots(*((2, 1) if narrow else (1, 2)))
        for look, (curve, share, name) in enumerate(zip(curves, shares, names_of(conditions), strict=True)):
            _line(left, curve, share, right, look, name)
        _finish(left, right, shared_model(conditions))
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=1 if narrow else 2)
    described = [
        {
            "condition": str(updates.condition),
            "ids": updates.ids,
            "best_scale": scales.tolist(),
            **{name: values.tolist() for name, values in curve.items()},
        }
        for updates, curve, scales in zip(found.selection.kept, curves, best, strict=True)
    ]
    return FigureResult(
        "longer-steps",
        TITLE,
        "(a) Mean gain in reference utility along the update's direction, with question-bootstrap bands; the "
        "proposed step ends at 1. (b) Share of updates whose best scale is at most α; the rest at 1 was too short.",
        figure,
        {"conditions": described},
        records.inputs(),
        found.selection.notes,
    )


def _curve(gains: Floats, bootstrap: Bootstrap) -> dict[str, Floats]:
    scales = scales_up_to((gains.shape[1] - 1) / 20)
    estimates = bootstrap.estimate({index: Mean(gains[:, index]) for index in range(len(scales))})
    mean = gains.mean(axis=0)
    ends = [
        (e.interval.low, e.interval.high) if e.interval else (m, m)
        for e, m in zip(estimates.values(), mean, strict=True)
    ]
    low, high = np.array(ends).T
    return {"scale": scales, "mean": mean, "low": low, "high": high}


def _shares(best_scale: Floats, scales: Floats) -> Floats:
    found: Floats = (best_scale[:, None] <= scales).mean(axis=0)
    return found


def _line(left: Axes, curve: dict[str, Floats], share: Floats, right: Axes, look: int, name: str) -> None:
    look %= len(SERIES_COLOURS)
    style: Any = {"color": SERIES_COLOURS[look], "marker": SERIES_MARKERS[look], "markersize": 2.8, "markevery": _EVERY}
    left.fill_between(curve["scale"], curve["low"], curve["high"], color=style["color"], alpha=0.18, linewidth=0)
    left.plot(curve["scale"], curve["mean"], label=name, **style)
    right.step(curve["scale"], 100 * share, where="post", **style)


def _finish(left: Axes, right: Axes, model: str) -> None:
    left.axhline(0, color=BLACK, linewidth=0.5)
    left.set_ylabel("Mean utility gain")
    right.set_ylabel("Best scale at most α (%)")
    right.set_ylim(-3, 103)
    for axes in (left, right):
        axes.axvline(1, color=GREY, linewidth=0.6, linestyle="--")
        axes.set_xlabel("Scale α")
    panel_letter(left, "a", model)
    panel_letter(right, "b")
