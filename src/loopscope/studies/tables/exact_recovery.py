"""What rounding the changed state does to recovery: steps on BF16-rounded states, and the same steps without rounding.

`quadratic-intervention` reads H + αD after it was rounded to BF16, as a model in BF16 would hold it. The path φ itself
is read beside it without that rounding: in the arithmetic of the pass, and at level `full` in FP64 throughout (with its
own α̂). Where an update is small, the rounding is as large as the step, and a recovery may be won or lost by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.store import Level
from loopscope.studies.records import Records, Updates
from loopscope.studies.result import COUNT, IDENTITY, Column, Row, TableResult, column, fixed, label, scientific
from loopscope.studies.usable_conditions import select

ACTIONS = {"quarter": "Quarter step", "quadratic": "Quadratic rule"}
ROUNDED = {"quarter": "bf16_quarter_gain", "quadratic": "bf16_quadratic_gain"}
FP64 = {"quarter": "fp64_quarter_gain", "quadratic": "fp64_predicted_gain"}


@dataclass(frozen=True)
class ExactRow(Row):
    """One action (the key) in one condition."""

    failures: int
    """Finite-step failures of the pass."""
    rounded: int
    """Those that the step recovers if its state is rounded to BF16."""
    exact: int
    """Those that it recovers without rounding."""
    fp64: int | None
    """The same with an FP64 readout; None below level full."""
    lost: int
    """Recovered without rounding, not with it."""
    won: int
    """Recovered with rounding, not without it."""
    rounded_gain: Estimate
    """Mean gain over all questions, rounded."""
    exact_gain: Estimate
    """The same without rounding."""
    difference: Estimate
    """Rounded minus exact, paired."""
    largest: float | None
    """Largest difference of a question."""


COLUMNS = (
    *IDENTITY,
    label("key", "Action"),
    column("failures", "Failures", COUNT),
    column("rounded", "BF16\nstates", COUNT, group="Recovered"),
    column("exact", "exact\nstates", COUNT, group="Recovered"),
    column("fp64", "FP64", COUNT, group="Recovered"),
    Column(("lost", "won"), "Lost / won\nby rounding", (COUNT, COUNT), template="{} / {}"),
    column("rounded_gain", "BF16\n(1e-3)", fixed(3, 1e3, sign=True), group="Mean gain"),
    column("exact_gain", "exact\n(1e-3)", fixed(3, 1e3, sign=True), group="Mean gain"),
    column("difference", "Difference (1e-3)\n[95% CI]", fixed(3, 1e3, sign=True, interval=True)),
    column("largest", "Largest", scientific(1)),
)


def exact_recovery(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[ExactRow]:
    """Two rows per condition."""
    return select(records, *ROUNDED.values(), "quadratic_gain", "grid_gain", level=Level.GRID).table(
        "exact-recovery",
        _rows,
        bootstrap,
        label="tab:exact-recovery",
        title="Recovery on rounded and on exact states",
        caption=(
            "Finite-step failures that a quarter step and the quadratic rule recover: reading H + αD rounded to BF16, "
            "reading it without that rounding, and (level full) in FP64 throughout, with the FP64 path's own scale. "
            "Lost and won count failures whose recovery the rounding changes. Gains are means over all questions."
        ),
        columns=COLUMNS,
        key_names=ACTIONS,
    )


def _rows(updates: Updates, bootstrap: Bootstrap) -> list[ExactRow]:
    failures, rows = updates.finite_step, []
    exact_gains = {"quarter": updates.quarter_gain, "quadratic": updates.floats("quadratic_gain")}
    for action, exact in exact_gains.items():
        rounded = updates.floats(ROUNDED[action])
        estimates = bootstrap.estimate(
            {"rounded_gain": Mean(rounded), "exact_gain": Mean(exact), "difference": Mean(rounded - exact)}
        )
        won, kept = rounded[failures] > 0, exact[failures] > 0
        has_fp64 = updates.has(FP64[action])
        rows.append(
            ExactRow(
                updates.condition,
                action,
                failures=int(failures.sum()),
                rounded=int(won.sum()),
                exact=int(kept.sum()),
                fp64=int((updates.floats(FP64[action])[failures] > 0).sum()) if has_fp64 else None,
                lost=int((kept & ~won).sum()),
                won=int((won & ~kept).sum()),
                largest=float(np.abs(rounded - exact).max()) if len(updates) else None,
                **estimates,
            )
        )
    return rows
