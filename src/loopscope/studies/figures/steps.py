"""Gain over scales beyond the proposed step, and where the best scale lies (`measure --scales-to S`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loopscope.path import scales_up_to
from loopscope.stats import Bootstrap, Mean
from loopscope.studies.figures import style
from loopscope.studies.records import Records, matrix
from loopscope.studies.tables.interventions import LONGER_STEPS, best_scales

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style.figure(
    "longer-steps",
    "Steps longer than the proposed one",
    paper="tab:longer-steps",
    summary="gain over scales beyond 1, and best scales",
    needs="--scales-to",
)
def longer_steps(records: Records, bootstrap: Bootstrap) -> style.Picture | str:
    """One line per condition in both panels."""
    chosen = LONGER_STEPS(records)
    if not chosen.kept:
        return chosen.notes[-1]
    conditions = [updates.condition for updates in chosen.kept]
    curves = []
    for updates in chosen.kept:
        frame = updates.other_table("longer_steps")
        gains = matrix(frame["gains"])
        best = best_scales(gains)
        scales = scales_up_to((gains.shape[1] - 1) / 20)
        means = list(bootstrap.estimate({place: Mean(column) for place, column in enumerate(gains.T)}).values())
        curves.append((scales, means, (best[:, None] <= scales).mean(axis=0), best))
    described = [
        {
            "condition": str(updates.condition),
            "ids": updates.ids,
            "best_scale": best.tolist(),
            "scale": scales.tolist(),
            "mean": [mean.value for mean in means],
            **{name: [style.ends(mean)[side] for mean in means] for side, name in enumerate(("low", "high"))},
        }
        for updates, (scales, means, _, best) in zip(chosen.kept, curves, strict=True)
    ]
    narrow = style.drawing().narrow

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(*((2, 1) if narrow else (1, 2)))
        for place, ((scales, means, share, _), name) in enumerate(zip(curves, style.names_of(conditions), strict=True)):
            look: Any = style.series(place) | {"markersize": 2.8, "markevery": 5}
            style.band(left, scales.tolist(), means, look, label=name)
            right.step(scales, 100 * share, where="post", **look)
        left.axhline(0, color=style.BLACK, linewidth=0.5)
        left.set_ylabel("Mean utility gain")
        right.set_ylabel("Best scale at most α (%)")
        right.set_ylim(-3, 103)
        for axes in (left, right):
            axes.axvline(1, color=style.GREY, linewidth=0.6, linestyle="--")
            axes.set_xlabel("Scale α")
        style.panel_letter(left, "a", style.shared_model(conditions))
        style.panel_letter(right, "b")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=1 if narrow else 2)

    caption = (
        "(a) Mean gain in reference utility along the update's direction, with question-bootstrap bands; the proposed "
        "step ends at 1. (b) Share of updates whose best scale is at most α; the rest at 1 was too short."
    )
    height = (4.2 if narrow else 2.1) + (0.14 if narrow else 0.08) * len(conditions)
    return style.Picture(height, draw, caption, {"conditions": described}, chosen.notes)
