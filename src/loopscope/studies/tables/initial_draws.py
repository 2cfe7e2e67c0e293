"""How much the results of a model with a drawn initial state vary over draws: runs that differ in the seed of H₀ alone.

Each run (`measure --initial-seed N`) is a draw. A condition's numbers are computed for every draw; their mean, standard
deviation and range over the draws are the rows. Question by question, the draws vote on the outcome.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl

from loopscope.errors import setting
from loopscope.stats import Bootstrap
from loopscope.store import StoredRun
from loopscope.store.hashing import json_bytes
from loopscope.studies.conditions import at, place_of
from loopscope.studies.records import Floats, Records, Updates
from loopscope.studies.result import (
    COUNT,
    IDENTITY,
    TEXT,
    Column,
    Panel,
    Row,
    TableResult,
    column,
    fixed,
    label,
)
from loopscope.studies.usable_conditions import no_updates, notes_on

QUANTITIES = {
    "gain": "Mean gain (1e-3)",
    "harmful": "Harmful (%)",
    "finite_step": "Finite-step share (%)",
    "sign_slope": "Sign accuracy of A (%)",
    "sign_quadratic": "Sign accuracy of A+Q (%)",
}


@dataclass(frozen=True)
class DrawRow(Row):
    """One quantity (the key) of one condition over its draws, in natural units."""

    draws: int
    """Those in which the quantity is defined."""
    mean: float | None
    deviation: float | None
    """Standard deviation over draws (n − 1); None with a single one."""
    lowest: float | None
    highest: float | None
    unit: float
    """What printing multiplies by: 1e3 for gains, 100 for shares."""
    questions: int
    unanimous: int
    """Questions on whose outcome all draws agree."""
    agreement: str
    """How many questions have so many draws that agree on their most frequent outcome: `5: 60, 4: 3, 3: 1`."""

    @property
    def shown(self) -> tuple[float | None, ...]:
        """Mean, deviation and range as printed."""
        found = (self.mean, self.deviation, self.lowest, self.highest)
        return tuple(None if value is None else value * self.unit for value in found)

    @property
    def shown_mean(self) -> float | None:
        """The mean as printed."""
        return self.shown[0]

    @property
    def shown_deviation(self) -> float | None:
        """The deviation as printed."""
        return self.shown[1]

    @property
    def shown_lowest(self) -> float | None:
        """The lowest as printed."""
        return self.shown[2]

    @property
    def shown_highest(self) -> float | None:
        """The highest as printed."""
        return self.shown[3]


COLUMNS = (
    *IDENTITY,
    label("key", "Quantity"),
    column("draws", "Draws", COUNT),
    column("shown_mean", "Mean", fixed(3)),
    column("shown_deviation", "Standard\ndeviation", fixed(3)),
    Column(("shown_lowest", "shown_highest"), "Range", (fixed(3), fixed(3)), template="{} … {}"),
    Column(("unanimous", "questions"), "All draws\nagree", (COUNT, COUNT), template="{}/{}"),
    Column(("agreement",), "Draws that agree:\nquestions", (TEXT,)),
)


def initial_draws(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[DrawRow]:
    """Five rows per condition that was measured from two or more draws."""
    runs = {place_of(run): run for run in records.runs}
    groups: dict[bytes, dict[int, Updates]] = {}
    notes: list[str] = []
    for updates in records.updates:
        run = runs[updates.condition.place]
        seed = run.manifest.seeds.get("initial_state")
        if seed is None:
            continue
        draws = groups.setdefault(_but_for_the_draw(run, updates), {})
        if seed in draws:
            notes.append(f"{updates.condition.run} is left out: {draws[seed].condition.run} is the same draw")
        else:
            draws[seed] = updates
    several = [draws for draws in groups.values() if len(draws) > 1]
    rows = tuple(row for draws in several for row in _rows(list(draws.values())))
    notes = [*notes_on(updates.condition for draws in several for updates in draws.values()), *dict.fromkeys(notes)]
    notes += _shared_draws(several)
    if not several:
        seeds = f"{setting('initial_seed', 0)}, {setting('initial_seed', 1_000_000)}, …"
        how = f"measure with {seeds} into folders of their own, and name all of them"
        reason = f"no two of these runs differ in the draw of H₀ alone: {how}"
        notes.append(no_updates(records) if not records.updates else records.nothing(reason))
    return TableResult(
        study="initial-draws",
        label="tab:initial-draws",
        title="Variation over draws of the initial state",
        caption=(
            "Runs that differ in the seed of H₀ alone. Each quantity is computed for every draw over all questions; "
            "mean, standard deviation (n − 1) and range are over draws. The last columns count questions by how many "
            "draws agree on their most frequent outcome."
        ),
        rows=rows,
        panels=(Panel(COLUMNS),),
        notes=tuple(notes),
        key_names=QUANTITIES,
    )


def _but_for_the_draw(run: StoredRun, updates: Updates) -> bytes:
    """What must be equal for two conditions to be draws of one: model, questions, dtypes, batches, settings, update."""
    manifest, condition = run.manifest, updates.condition
    seeds = {name: seed for name, seed in manifest.seeds.items() if name != "initial_state"}
    task = manifest.task(condition.task, condition.split)
    settings = {
        name: value for name, value in manifest.settings.items() if name not in ("keep_states", "continue_from")
    }
    parts = (manifest.model, manifest.dtypes, manifest.batch, task)
    described = [part.model_dump(mode="json") for part in parts]
    return json_bytes({"parts": described, "seeds": seeds, "settings": settings, "transition": condition.transition})


def _shared_draws(several: list[dict[int, Updates]]) -> list[str]:
    """H₀ of a question is drawn from seed + source row: seeds nearer than rows give questions each other's draws."""
    for draws in several:
        reach = max(int(np.ptp(updates.frame["source_row"].to_numpy())) for updates in draws.values())
        nearest = int(np.diff(sorted(draws)).min())
        if nearest <= reach:
            return [
                f"seeds that are {nearest} apart give one question the H₀ of another; choose them more than {reach}"
                " apart for draws that share nothing"
            ]
    return []


def _rows(draws: list[Updates]) -> list[DrawRow]:
    draws = _on_common_questions(draws)
    if not len(draws[0]):
        return []
    by_draw = [_numbers(updates) for updates in draws]
    outcomes_QR = np.stack([updates.outcome for updates in draws], axis=1)
    largest = [Counter(row).most_common(1)[0][1] for row in outcomes_QR.tolist()]
    votes = Counter(largest)
    agreement = ", ".join(f"{size}: {votes[size]}" for size in sorted(votes, reverse=True))
    rows = []
    for name in QUANTITIES:
        found: Floats = np.array([numbers[name] for numbers in by_draw if numbers[name] is not None], dtype=np.float64)
        rows.append(
            DrawRow(
                draws[0].condition,
                name,
                draws=len(found),
                mean=float(found.mean()) if len(found) else None,
                deviation=float(found.std(ddof=1)) if len(found) > 1 else None,
                lowest=float(found.min()) if len(found) else None,
                highest=float(found.max()) if len(found) else None,
                unit=1e3 if name == "gain" else 100.0,
                questions=len(largest),
                unanimous=votes[len(draws)],
                agreement=agreement,
            )
        )
    return rows


def _on_common_questions(draws: list[Updates]) -> list[Updates]:
    """The questions that all draws have; an unfinished run has fewer."""
    common = set(draws[0].frame["row"]).intersection(*(updates.frame["row"] for updates in draws[1:]))
    kept = [updates.frame.filter(pl.col("row").is_in(sorted(common))) for updates in draws]
    pairs = zip(draws, kept, strict=True)
    return [Updates(at(one.condition, one.condition.transition, len(common)), frame) for one, frame in pairs]


def _numbers(updates: Updates) -> dict[str, float | None]:
    """The quantities of one draw, as the tables `mechanism` and `failure-shares` define them."""
    harmful = int(updates.harmful.sum())
    sign = np.sign(updates.gain)
    return {
        "gain": float(updates.gain.mean()),
        "harmful": harmful / len(updates),
        "finite_step": int(updates.finite_step.sum()) / harmful if harmful else None,
        "sign_slope": float(np.mean(np.sign(updates.slope) == sign)),
        "sign_quadratic": float(np.mean(np.sign(updates.slope + updates.quadratic) == sign)),
    }
