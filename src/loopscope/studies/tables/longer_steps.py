"""Steps that were too short: φ'(1) > 0, and the best scale on [0, S] (`measure --scales-to S`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from loopscope.errors import setting
from loopscope.path import GRID, scales_up_to
from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.studies.records import Floats, Mask, Records, Updates, matrix
from loopscope.studies.result import COUNT, IDENTITY, Row, TableResult, column, fixed, label, percent
from loopscope.studies.usable_conditions import Beside, select_beside

POPULATIONS = {"all": "All", "progressing": "Progressing", "harmful": "Harmful"}


@dataclass(frozen=True)
class LongerStepsRow(Row):
    """One population (the key) of one condition."""

    n: int
    end: float
    """S, where the scales end."""
    too_short: Estimate
    """Share with φ'(1) > 0."""
    beyond: Estimate
    """Share whose best scale lies beyond 1."""
    at_end: int
    """Updates whose best scale is S itself: the best may lie further on."""
    best_scale: Estimate
    """Mean best scale on [0, S]."""
    extra: Estimate
    """Mean of the best gain on [0, S] minus the best one on [0, 1]."""
    over_full: Estimate
    """Mean of the best gain on [0, S] minus the full step's."""
    quadratic_over_full: Estimate
    """Mean gain at the maximiser of Aα + Qα² on [0, S] minus the full step's."""


COLUMNS = (
    *IDENTITY,
    label("key", "Updates"),
    column("n", "N", COUNT, latex="$N$"),
    column("too_short", "φ'(1) > 0 (%)\n[95% CI]", percent(1, interval=True)),
    column("beyond", "Best scale > 1 (%)\n[95% CI]", percent(1, interval=True)),
    column("at_end", "Best\nat S", COUNT),
    column("best_scale", "Mean best\nscale", fixed(2)),
    column("extra", "Over best of [0, 1] (1e-3)\n[95% CI]", fixed(3, 1e3, sign=True, interval=True)),
    column("over_full", "Over full step (1e-3)\n[95% CI]", fixed(3, 1e3, sign=True, interval=True)),
    column("quadratic_over_full", "Quadratic over\nfull step (1e-3)", fixed(3, 1e3, sign=True, interval=True)),
)


def with_longer_steps(records: Records) -> Beside:
    """The conditions that were measured with scales beyond 1."""
    return select_beside(records, "longer_steps", setting("scales_to", 2))


def longer_steps(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[LongerStepsRow]:
    """Three rows per condition."""
    found = with_longer_steps(records)
    return found.selection.table(
        "longer-steps",
        lambda updates, settings: _rows(updates, found.frames[updates.condition], settings),
        bootstrap,
        label="tab:longer-steps",
        title="Steps that were too short",
        caption=(
            "φ'(1) > 0 says that the utility still rises where the step ends. The best scale is the best of 0, 0.05, …,"
            " S along the same direction, ties to the smallest; gains are in units of 0.001. The last column takes the"
            " maximiser of Aα + Qα² on [0, S]. Intervals resample questions."
        ),
        columns=COLUMNS,
        key_names=POPULATIONS,
    )


def _rows(updates: Updates, frame: pl.DataFrame, bootstrap: Bootstrap) -> list[LongerStepsRow]:
    gains = matrix(frame["gains"])
    populations: dict[str, Mask] = {
        "all": np.ones(len(updates), dtype=bool),
        "progressing": updates.gain > 0,
        "harmful": updates.harmful,
    }
    return [_row(updates, frame, gains, key, chosen, bootstrap) for key, chosen in populations.items()]


def _end(gains: Floats) -> float:
    return int(gains.shape[1] - 1) / (len(GRID) - 1)


def best_scales(gains: Floats) -> Floats:
    """The best of the scales 0, 0.05, … of every question, ties to the smallest."""
    found: Floats = scales_up_to(_end(gains))[gains.argmax(axis=1)] if gains.size else np.empty(0)
    return found


def _row(
    updates: Updates, frame: pl.DataFrame, gains: Floats, key: str, chosen: Mask, bootstrap: Bootstrap
) -> LongerStepsRow:
    own = frame.filter(pl.Series(chosen))
    best_scale, best_gain = best_scales(gains[chosen]), gains[chosen].max(axis=1, initial=-np.inf)
    full, inside = gains[chosen, len(GRID) - 1], gains[chosen, : len(GRID)].max(axis=1, initial=-np.inf)
    end = _end(gains)
    estimates = bootstrap.estimate(
        {
            "too_short": Mean(own["end_slope"].to_numpy() > 0),
            "beyond": Mean(best_scale > 1),
            "best_scale": Mean(best_scale),
            "extra": Mean(best_gain - inside),
            "over_full": Mean(best_gain - full),
            "quadratic_over_full": Mean(own["quadratic_gain"].to_numpy() - full),
        }
    )
    at_end = int((best_scale == scales_up_to(end)[-1]).sum())
    return LongerStepsRow(updates.condition, key, n=own.height, end=end, at_end=at_end, **estimates)
