"""Models compared, one row or point per run and task; and how far updates are from a fixed point."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscope.stats import Best, Bootstrap, Estimate, Mean, Ratio
from loopscope.store import Level
from loopscope.studies import figures
from loopscope.studies.conditions import Condition, at, title
from loopscope.studies.declare import IDENTITY, MODEL, TASK, Column, Row, TableResult, Values, table, words
from loopscope.studies.populations import Population, Selection, select, updates_with
from loopscope.studies.records import GRID_SCALES, Floats, Records, Updates
from loopscope.studies.topics.training import OUTCOMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DESIGN = ("topology", "injection", "depth_prior")


@dataclass(frozen=True)
class RunUpdates:
    """All updates of one run and evaluation set; every update has the same questions in the same order."""

    condition: Condition
    updates: tuple[Updates, ...]

    def mean(self, values: list[Any]) -> Floats:
        """The mean over the updates of each question: [N] or [N, ...] from one such array per update."""
        return np.asarray(np.mean(np.stack(values), axis=0, dtype=np.float64))

    @cached_property
    def design(self) -> dict[str, str]:
        """Topology, injection and depth prior as the run's manifest has them."""
        found = self.condition.manifest.model.design if self.condition.manifest else {}
        return {name: title(found[name]) for name in DESIGN if name in found}


def _by_run(records: Records) -> Selection:
    chosen = select(records, "slope", "quadratic", "gain")
    found: dict[Condition, list[Updates]] = {}
    for updates in chosen.kept:
        found.setdefault(at(updates.condition, None, len(updates)), []).append(updates)
    return Selection(tuple(RunUpdates(condition, tuple(each)) for condition, each in found.items()), chosen.notes)


@table(
    "families",
    "Models compared",
    summary="one row per run: topology, injection, depth prior, outcomes",
    over=Population(_by_run, "quick"),
    columns=(
        *(MODEL, TASK, words("Updates", "{updates}"), words("Topology", "{topology}")),
        *(words("Injection", "{injection}"), words("Depth prior", "{depth_prior}")),
        Column("Finite-step share\n(%) [95% CI]", "{share:.1%}", ci=True),
        Column("A", "{sign_slope:.1%}", ci=True, group="Sign accuracy (%) [95% CI]"),
        Column("A+Q", "{sign_quadratic:.1%}", ci=True, group="Sign accuracy (%) [95% CI]"),
        Column("Best depth\n[95% CI]", "{best_depth:.0f}", ci=True),
        Column("Fitted scale\n[95% CI]", "{fitted_scale:.2f}", ci=True),
        Column("Its gain (1e-3)\n[95% CI]", "{fitted_gain:+.3f}", per=1e-3, ci=True),
    ),
)
def families(run: RunUpdates) -> Values:
    """One row per run and task, over all measured updates. The share is that of finite-step failures among harmful
    updates; sign accuracy is that of the full-step gain's sign. The best depth has the highest mean utility of those
    stored. The fitted scale is the constant scale on the 21-point grid with the highest mean gain, chosen in hindsight
    on the same questions. Intervals resample questions, each with all of its updates.
    """
    updates, unknown = run.updates, Estimate(None, run.condition.n)
    signs = [each.right_signs for each in updates]
    sweep = updates[0].sweep
    values = {
        "updates": ", ".join(each.condition.update for each in updates),
        **{name: run.design.get(name) for name in DESIGN},
        "share": Ratio(sum(each.finite_step for each in updates), sum(each.harmful for each in updates)),
        **{name: Mean(run.mean([each[name] for each in signs])) for name in ("sign_slope", "sign_quadratic")},
        "best_depth": Best(sweep.depths, sweep.utility) if sweep else unknown,
    }
    if not all(each.has("grid_gain") for each in updates):
        return values | {"fitted_scale": unknown, "fitted_gain": unknown}
    gain_NG = run.mean([each.grid_gain for each in updates])
    best = int(np.argmax(gain_NG.mean(axis=0)))
    return values | {"fitted_scale": Best(GRID_SCALES, gain_NG), "fitted_gain": Mean(gain_NG[:, best])}


@table(
    "convergence",
    "Relative step and outcome by update",
    summary="relative step of every update, with its gain and outcome",
    over=updates_with("relative_change", level=Level.GRID),
    columns=(
        *(*IDENTITY, Column("Residual\n[95% CI]", "{residual:.3g}", ci=True), Column("Largest", "{largest:.3g}")),
        Column("ΔU (1e-3)\n[95% CI]", "{gain:+.3f}", per=1e-3, ci=True),
        Column("A (1e-3)\n[95% CI]", "{slope:+.3f}", per=1e-3, ci=True),
        *(
            Column(name.replace("_", "-").capitalize(), f"{{{name}:.1%}}", group="Updates (%)")
            for name in reversed(OUTCOMES)
        ),
    ),
)
def convergence(updates: Updates) -> Values:
    """The residual ‖H_{t+1} − H_t‖ / ‖H_t‖ is the mean over questions; a model at a fixed point has none. Next to it
    mean gain and slope, and shares of outcomes: progressing and neutral updates, directional and finite-step failures.
    """
    residual = updates.floats("relative_change")
    return {
        "residual": Mean(residual),
        "largest": residual.max(),
        "gain": Mean(updates.gain),
        "slope": Mean(updates.slope),
        **{name: Mean(updates.outcome == code) for name, code in reversed(OUTCOMES.items())},
    }


MOST_TOPOLOGIES = 14
"""Topologies in the legend; series have as many looks in a row."""


@figures.figure(
    "families",
    "Models compared",
    paper="fig:families",
    summary="finite-step share against sign accuracy, by topology",
    over=families,
)
def families_figure(table: TableResult, bootstrap: Bootstrap) -> figures.Picture | str:
    """A colour for each topology; a model whose family records none has its family's name."""
    if len(table.rows) == 1:
        return "one run and one task: name several runs to compare them"
    drawn = [row for row in table.rows if row["share"].value is not None]
    names = list(dict.fromkeys(map(_topology, table.rows)))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row in drawn:
            (left, right), (low, high) = figures.ends(row["share"]), figures.ends(row["sign_slope"])
            x, y, look = row["share"].value, row["sign_slope"].value, figures.series(names.index(_topology(row)))
            axes.plot([100 * left, 100 * right], [100 * y] * 2, color=look["color"], linewidth=0.7, alpha=0.5)
            axes.plot([100 * x] * 2, [100 * low, 100 * high], color=look["color"], linewidth=0.7, alpha=0.5)
            axes.plot(100 * x, 100 * y, linestyle="none", markersize=4.5, **look)
        axes.set(xlim=(-4, 104), ylim=(-4, 104))
        axes.set_xlabel("Finite-step failures among harmful updates (%)")
        axes.set_ylabel("Sign accuracy of the slope (%)")
        looks = [
            figures.handle(figures.series(place), label=figures.literal(name), linestyle="none")
            for place, name in enumerate(names)
        ]
        figure.legend(handles=looks[:MOST_TOPOLOGIES], loc="outside lower center", ncols=2)

    harmless = len(table.rows) - len(drawn)
    caption = (
        "Share of finite-step failures among harmful updates, and how often the slope has the sign of the full-step "
        f"gain; a point is a run and task, a colour a topology. Lines are {100 * bootstrap.level:g}% intervals over "
        "questions." + (f" {harmless} without a harmful update are not drawn." if harmless else "")
    )
    height = 2.6 + 0.16 * -(-min(len(names), MOST_TOPOLOGIES) // 2)
    return figures.Picture(height, draw, caption, {"rows": table.to_polars().to_dicts()})


def _topology(row: Row) -> str:
    return str(row["topology"] or row.condition.family)
