"""Quadratic prediction against refined FP64 optimum estimates: Table "tab:fp64-path-prediction", Appendix E.5."""

from dataclasses import dataclass

import numpy as np

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.store import Level
from loopscope.studies.fp64 import NEEDED, Fp64Paths
from loopscope.studies.records import Mask, Records, Updates
from loopscope.studies.result import (
    COUNT,
    MODEL,
    TASK,
    UPDATE,
    Column,
    Panel,
    Row,
    TableResult,
    column,
    fixed,
    label,
    scientific,
)
from loopscope.studies.selection import select

POPULATIONS = {
    "all": "All",
    "primary": "Primary",
    "interior": "Interior",
    "failures": "Finite-step failures",
}


@dataclass(frozen=True)
class RefinedRow(Row):
    """One population (the key) of one condition."""

    n: int
    error_low: Estimate
    error_high: Estimate
    """Mean scale error |α̂ − α*|: what the brackets allow (numerical, not a confidence interval)."""
    regret_low: Estimate
    regret_high: Estimate
    """Mean regret φ(α*) − φ(α̂), likewise."""
    left: int
    interior: int
    right: int
    """Where the optima lie: at 0, inside, at 1."""


COLUMNS = (
    MODEL,
    TASK,
    UPDATE,
    label("key", "Population"),
    column("n", "n", COUNT, latex="$n$"),
    Column(("error_low", "error_high"), "Mean scale error", (fixed(6), fixed(6)), template="[{}, {}]"),
    Column(
        ("regret_low", "regret_high"),
        "Mean numerical regret",
        (scientific(6), scientific(6)),
        template="[{}, {}]",
    ),
    Column(
        ("left", "interior", "right"),
        "Optima at\n0 / inside / 1",
        (COUNT, COUNT, COUNT),
        template="{} / {} / {}",
    ),
)


def refined_optima(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[RefinedRow]:
    """Four rows per condition; primary membership is that of the stored slope and curvature, as in the paper."""
    chosen = select(records, *NEEDED, level=Level.FULL)
    return TableResult(
        study="refined-optima",
        label="tab:fp64-path-prediction",
        title="Quadratic prediction against refined FP64 optimum estimates",
        caption=(
            "For concave paths the entries are numerical intervals propagated from derivative-root brackets; for other "
            "paths both ends use the best evaluated candidate. These intervals are numerical, not confidence "
            "intervals. Interior and failure rows are descriptive subsets."
        ),
        rows=tuple(row for updates in chosen.kept for row in _rows(updates, bootstrap or Bootstrap())),
        panels=(Panel(COLUMNS),),
        notes=chosen.notes,
        key_names=POPULATIONS,
    )


def population(updates: Updates, paths: Fp64Paths, key: str) -> Mask:
    """Which questions belong to a population."""
    return {
        "all": np.ones(len(updates), dtype=bool),
        "primary": updates.primary,
        "interior": paths.of_kind("interior"),
        "failures": updates.finite_step,
    }[key]


def _rows(updates: Updates, bootstrap: Bootstrap) -> list[RefinedRow]:
    paths = Fp64Paths(updates)
    kinds = {kind: paths.of_kind(kind) for kind in ("left", "interior", "right")}
    rows = []
    for key in POPULATIONS:
        inside = population(updates, paths, key)
        estimates = bootstrap.estimate(
            {
                "error_low": Mean(paths.error.lower[inside]),
                "error_high": Mean(paths.error.upper[inside]),
                "regret_low": Mean(paths.regret.lower[inside]),
                "regret_high": Mean(paths.regret.upper[inside]),
            }
        )
        rows.append(
            RefinedRow(
                updates.condition,
                key,
                n=int(inside.sum()),
                left=int((inside & kinds["left"]).sum()),
                interior=int((inside & kinds["interior"]).sum()),
                right=int((inside & kinds["right"]).sum()),
                **estimates,
            )
        )
    return rows
