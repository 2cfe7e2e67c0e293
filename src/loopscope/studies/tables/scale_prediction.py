"""Quadratic scale prediction against grid optima: Tables "tab:scale-prediction-main" and "tab:step-prediction".

Appendix E.4: correlation and scale error compare the continuous α̂ with the 21-point grid optimum; regret is taken at
the grid action nearest to the chosen scale. Ties go to the smaller scale throughout.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from loopscope.path import grid_regret, nearest_action, uniform_grid
from loopscope.stats import Bootstrap, Estimate, Mean, Spearman
from loopscope.store import Level
from loopscope.studies.records import GRID_SCALES, Floats, Mask, Records, Updates
from loopscope.studies.result import (
    COUNT,
    IDENTITY,
    Panel,
    Row,
    TableResult,
    column,
    fixed,
    label,
    scientific,
)
from loopscope.studies.usable_conditions import select

FIXED_SCALES: tuple[float, ...] = tuple(uniform_grid(5).tolist())
POPULATIONS = {
    "primary": "A>0, Q<0",
    "all": "All questions",
    "interior": "Interior grid optimum",
}


def _fixed(scale: float) -> str:
    """The field of a fixed scale's regret."""
    return f"fixed_{round(100 * scale)}"


@dataclass(frozen=True)
class ScaleRow(Row):
    """One population (the key) of one condition."""

    n: int
    spearman: Estimate
    """Between α̂ and the grid optimum."""
    scale_mae: Estimate
    """Mean |α̂ − grid optimum|."""
    first_order_regret: Estimate
    """Of the rule that maximises Aα: the full step where A > 0, none elsewhere."""
    quadratic_regret: Estimate
    """At the grid action nearest to α̂."""
    advantage: Estimate
    """Paired gain of the quadratic over the first-order action."""
    fixed_0: Estimate
    """Regret of leaving the state as it is."""
    fixed_25: Estimate
    fixed_50: Estimate
    fixed_75: Estimate
    fixed_100: Estimate
    """Regret of always taking the full step."""
    best_fixed: float | None
    """The fixed scale with the least mean regret on this very population: a comparator in hindsight."""
    best_fixed_regret: Estimate
    at_zero: int
    """Questions whose grid optimum is the current state."""
    at_one: int
    """Questions whose grid optimum is the full step."""
    both_at_one: int
    """Those whose predicted grid action is the full step as well."""

    def fixed(self, scale: float) -> Estimate:
        """Regret of one of the five fixed scales."""
        estimate: Estimate = getattr(self, _fixed(scale))
        return estimate


LEADS = (*IDENTITY, label("key", "Population"))
PANELS = (
    Panel(
        (
            *LEADS,
            column("n", "n", COUNT, latex="$n$"),
            column("spearman", "Spearman", fixed(4)),
            column("scale_mae", "Scale MAE", fixed(4)),
            column("first_order_regret", "First-order\nregret", scientific(3)),
            column("quadratic_regret", "Quadratic\nregret", scientific(3)),
        ),
        title="(a) Predicted scale against the grid optimum",
    ),
    Panel(
        (
            *LEADS,
            *(
                column(_fixed(scale), f"{scale:g}", scientific(3), group="Regret of a fixed scale")
                for scale in FIXED_SCALES
            ),
            column("best_fixed", "Best\nfixed", fixed(2)),
            column("quadratic_regret", "Quadratic\nregret", scientific(3)),
        ),
        title="(b) Fixed scales",
    ),
)


def scale_prediction(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[ScaleRow]:
    """Three rows per condition: the primary subset, all questions, and primary questions with interior optimum."""
    return select(records, "grid_gain", "quadratic_scale", level=Level.GRID).table(
        "scale-prediction",
        rows_of,
        bootstrap,
        label="tab:step-prediction",
        title="Local quadratic scale prediction",
        caption=(
            "Correlation and scale MAE compare the continuous prediction with the 21-point grid optimum, and utility "
            "regret uses the nearest grid action. The best fixed scale is chosen in hindsight on the same questions."
        ),
        panels=PANELS,
        key_names=POPULATIONS,
    )


def regrets(updates: Updates) -> dict[str, Floats]:
    """Regret of each rule for every question: `first_order`, `quadratic` and the five fixed scales."""
    first_order = (updates.slope > 0).astype(np.float64)
    rules = {"first_order": first_order, "quadratic": updates.quadratic_scale}
    rules |= {_fixed(scale): np.full(len(updates), scale) for scale in FIXED_SCALES}
    return {name: grid_regret(GRID_SCALES, updates.grid_gain, scale) for name, scale in rules.items()}


def population(updates: Updates, key: str) -> Mask:
    """Which questions belong to a population."""
    if key == "all":
        return np.ones(len(updates), dtype=bool)
    if key == "primary":
        return updates.primary
    optimum = np.asarray(updates.optimum.alpha)
    return np.asarray(updates.primary & (optimum > 0) & (optimum < 1))


def rows_of(updates: Updates, bootstrap: Bootstrap, keys: Iterable[str] = POPULATIONS) -> list[ScaleRow]:
    """Some populations of one condition, all of them by default."""
    regret = regrets(updates)
    return [_row(updates, key, regret, bootstrap) for key in keys]


def _row(updates: Updates, key: str, regret: dict[str, Floats], bootstrap: Bootstrap) -> ScaleRow:
    inside = population(updates, key)
    predicted = updates.quadratic_scale[inside]
    optimum = np.asarray(updates.optimum.alpha)[inside]
    regret = {name: values[inside] for name, values in regret.items()}
    estimates = bootstrap.estimate(
        {
            "spearman": Spearman(predicted, optimum),
            "scale_mae": Mean(np.abs(predicted - optimum)),
            "first_order_regret": Mean(regret["first_order"]),
            "quadratic_regret": Mean(regret["quadratic"]),
            "advantage": Mean(regret["first_order"] - regret["quadratic"]),
            **{name: Mean(values) for name, values in regret.items() if name.startswith("fixed_")},
        }
    )
    best = _best_fixed(regret)
    empty = Estimate(None, 0)
    at_full = np.asarray(nearest_action(GRID_SCALES, predicted).alpha) == 1
    return ScaleRow(
        updates.condition,
        key,
        n=int(inside.sum()),
        best_fixed=best,
        best_fixed_regret=empty if best is None else estimates[_fixed(best)],
        at_zero=int((optimum == 0).sum()),
        at_one=int((optimum == 1).sum()),
        both_at_one=int(((optimum == 1) & at_full).sum()),
        **estimates,
    )


def _best_fixed(regret: dict[str, Floats]) -> float | None:
    if not regret["quadratic"].size:
        return None
    means = [float(regret[_fixed(scale)].mean()) for scale in FIXED_SCALES]
    return FIXED_SCALES[int(np.argmin(means))]
