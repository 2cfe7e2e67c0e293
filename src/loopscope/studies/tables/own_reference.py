"""The model's own answer as reference: how far what it says of an update agrees with what the given reference says.

Two runs are paired question by question: one measured with `--reference own`, one without, of the same weights, data
and update. A, Q and α̂ of the own answer need no label. What a step scale chosen from them would gain is read from the
given reference's grid, at the scale nearest to the own α̂.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loopscope.errors import setting
from loopscope.path import nearest_action
from loopscope.stats import Bootstrap, Estimate, Mean, Ratio, Spearman, Statistic
from loopscope.studies.conditions import Condition
from loopscope.studies.records import GRID_SCALES, Floats, Records, Updates, of_set
from loopscope.studies.result import COUNT, IDENTITY, Column, Panel, Row, TableResult, column, fixed, percent
from loopscope.studies.usable_conditions import no_updates, notes_on


@dataclass(frozen=True)
class OwnReferenceRow(Row):
    """One pair of conditions; `condition` is that of the own answers."""

    questions: int
    same_reference: Estimate
    """Share of questions whose own answer is the given reference, word for word, or the right option."""
    slope_sign: Estimate
    """Share with the same sign of A."""
    quadratic_sign: Estimate
    """Share with the same sign of Q."""
    outcome: Estimate
    """Share with the same outcome."""
    slope_rank: Estimate
    """Spearman correlation of A."""
    scale_rank: Estimate
    """Spearman correlation of α̂."""
    own_failures: int
    """Finite-step failures by the own answer."""
    given_failures: int
    """Finite-step failures by the given reference."""
    full_gain: Estimate
    """Mean gain of the full step, for the given reference."""
    own_gain: Estimate
    """Mean gain at the own answer's α̂, for the given reference; undefined without its grid."""
    given_gain: Estimate
    """Mean gain at the given reference's α̂, likewise at the nearest of 21 scales."""
    kept: Estimate
    """own_gain / given_gain."""


COLUMNS = (
    *IDENTITY,
    column("questions", "N", COUNT, latex="$N$"),
    column("same_reference", "Same\nanswer (%)", percent(1)),
    column("slope_sign", "Sign of A (%)\n[95% CI]", percent(1, interval=True)),
    column("quadratic_sign", "Sign of Q (%)\n[95% CI]", percent(1, interval=True)),
    column("outcome", "Outcome (%)\n[95% CI]", percent(1, interval=True)),
    column("slope_rank", "A\nSpearman", fixed(3)),
    column("scale_rank", "α̂ Spearman\n[95% CI]", fixed(3, interval=True)),
    Column(("own_failures", "given_failures"), "Failures\nown / given", (COUNT, COUNT), template="{} / {}"),
    column("full_gain", "Full step\n(1e-3)", fixed(3, 1e3, sign=True)),
    column("own_gain", "Own α̂ (1e-3)\n[95% CI]", fixed(3, 1e3, sign=True, interval=True)),
    column("given_gain", "Given α̂ (1e-3)\n[95% CI]", fixed(3, 1e3, sign=True, interval=True)),
    column("kept", "Kept (%)\n[95% CI]", percent(1, interval=True)),
)


class Pair(NamedTuple):
    """One update under both references, questions in the same order."""

    own: Updates
    given: Updates
    same: Floats
    """1 where the own answer is the given reference, [N]."""


def own_reference(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[OwnReferenceRow]:
    """One row per pair of conditions."""
    settings = bootstrap or Bootstrap()
    pairs = tuple(reference_pairs(records))
    notes = [*notes_on(updates.condition for pair in pairs for updates in (pair.own, pair.given))]
    paired = {updates.condition for pair in pairs for updates in (pair.own, pair.given)}
    alone = dict.fromkeys(str(u.condition) for u in records.updates if u.condition not in paired)
    if alone:
        how = f"measure with {setting('reference', 'own')} and without, into two folders, and name both"
        notes.append(f"without a partner: {', '.join(alone)} ({how})")
    if not records.updates:
        notes.append(no_updates(records))
    return TableResult(
        study="own-reference",
        label="tab:own-reference",
        title="The model's own answer as reference",
        caption=(
            "Every update under the given reference and under the model's own greedy answer (of options: its own "
            "choice) at the trained depth, question by question: share of equal signs and outcomes, rank correlations. "
            "Gains in units of 0.001 are the given reference's: of the full step, and at the scale of 0, 0.05, …, 1 "
            "nearest to each answer's α̂; kept is the ratio of the last two. Intervals resample questions."
        ),
        rows=tuple(_row(pair, settings) for pair in pairs),
        panels=(Panel(COLUMNS),),
        notes=tuple(notes),
    )


def reference_pairs(records: Records) -> Iterator[Pair]:
    """Conditions of own answers, each with the first one of the same update under the given references."""
    for own in records.updates:
        if own.condition.reference == "own":
            given = next((other for other in records.updates if _same_update(records, own, other)), None)
            if given is not None:
                yield _paired(records, own, given)


def _same_update(records: Records, own: Updates, other: Updates) -> bool:
    one, two = own.condition, other.condition
    if two.reference != "given" or one.transition != two.transition:
        return False
    first, second = (_identity(records, condition) for condition in (one, two))
    return first == second and bool(set(own.ids) & set(other.ids))


def _identity(records: Records, condition: Condition) -> tuple[object, ...]:
    """Weights, data and wording: what two runs must have in common."""
    manifest = records.run_of(condition).manifest
    model, task = manifest.model, manifest.task(condition.task, condition.split)
    drawn = manifest.seeds
    data = (task.name, task.split, task.data_sha256, task.template_sha256)
    return (model.name, tuple(sorted(model.weights.items())), model.config_sha256, tuple(sorted(drawn.items())), *data)


def _paired(records: Records, own: Updates, given: Updates) -> Pair:
    """Both cut to the questions that they share, in the order of the own answers."""
    shared = own.frame.select("example_id").join(given.frame.select("example_id"), on="example_id", how="semi")
    first, second = (
        Updates(updates.condition, shared.join(updates.frame, on="example_id", how="left", maintain_order="left"))
        for updates in (own, given)
    )
    answers = [
        shared.join(
            records.run_of(condition).examples.filter(of_set(condition)),
            on="example_id",
            how="left",
            maintain_order="left",
        )
        for condition in (own.condition, given.condition)
    ]
    if own.condition.kind == "options":
        same = answers[0]["correct_option"].to_numpy() == answers[1]["correct_option"].to_numpy()
    else:
        texts = [frame["reference"].str.strip_chars().to_numpy() for frame in answers]
        same = texts[0] == texts[1]
    return Pair(first, second, np.asarray(same, dtype=np.float64))


def _row(pair: Pair, bootstrap: Bootstrap) -> OwnReferenceRow:
    own, given = pair.own, pair.given
    statistics: dict[str, Statistic] = {
        "same_reference": Mean(pair.same),
        "slope_sign": Mean(np.sign(own.slope) == np.sign(given.slope)),
        "quadratic_sign": Mean(np.sign(own.quadratic) == np.sign(given.quadratic)),
        "outcome": Mean(own.outcome == given.outcome),
        "slope_rank": Spearman(own.slope, given.slope),
        "scale_rank": Spearman(own.quadratic_scale, given.quadratic_scale),
        "full_gain": Mean(given.gain),
    }
    if given.has("grid_gain"):
        at_own, at_given = (_gain_at(given, updates.quadratic_scale) for updates in (own, given))
        statistics |= {"own_gain": Mean(at_own), "given_gain": Mean(at_given), "kept": Ratio(at_own, at_given)}
    undefined = dict.fromkeys(("own_gain", "given_gain", "kept"), Estimate(None, len(own)))
    estimates = undefined | bootstrap.estimate(statistics)
    return OwnReferenceRow(
        own.condition,
        "",
        questions=len(own),
        own_failures=int(own.finite_step.sum()),
        given_failures=int(given.finite_step.sum()),
        **estimates,
    )


def _gain_at(given: Updates, scale: Floats) -> Floats:
    """φ of the given reference at the grid scale nearest to another."""
    index = np.atleast_1d(nearest_action(GRID_SCALES, scale).index)
    found: Floats = np.take_along_axis(given.grid_gain, index[:, None], axis=1)[:, 0]
    return found
