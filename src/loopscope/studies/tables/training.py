"""A training in steps: outcomes, gains and the best depth of every checkpoint, or of every call of a monitor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopscope.errors import setting
from loopscope.stats import Bootstrap, Estimate
from loopscope.studies.declare import TASK, UPDATE, Column, Panel, Row, Values, table, words
from loopscope.studies.populations import Population, Selection, notes_on
from loopscope.studies.records import Records
from loopscope.studies.training import MEASURES, no_steps, trainings, without_step


def _thousandths(head: str, name: str, *, ci: bool = False) -> Column:
    return Column(f"{head} (1e-3)" + ("\n[95% CI]" if ci else ""), f"{{{name}:+.2f}}", per=1e-3, ci=ci)


def _records(records: Records) -> Selection:
    """All records at once: a training is made of several runs."""
    return Selection((records,), ())


def _notes(rows: Sequence[Row], records: Records) -> Iterator[str]:
    yield from notes_on(row.condition for row in rows)
    if unknown := without_step(records):
        how = f"name the model's folder step-1000, or measure with {setting('training_step', 1000)}"
        yield f"without a training step: {', '.join(unknown)} ({how})"
    if records.logs and any(row["best_depth"].interval is None for row in rows):
        yield "a monitor's log holds means and standard errors: its intervals are normal, its best depths bare"
    if not rows:
        yield no_steps(records)


WHICH = (words("Training", "{series}"), TASK, UPDATE, Column("Step", "{step}"))


@table(
    "training",
    "A training in steps",
    summary="outcomes, gains and best depth over a training",
    over=Population(_records, "several steps"),
    columns=(
        Panel(
            (
                *(*WHICH, Column("N", "{condition.n}"), Column("Progressing (%)", "{progressing:.1%}")),
                Column("Directional\nfailures (%)", "{directional:.1%}"),
                Column("Finite-step failures (%)\n[95% CI]", "{finite_step:.1%}", ci=True),
                Column("Of harmful (%)\n[95% CI]", "{share:.1%}", ci=True),
            ),
            "(a) Outcomes",
        ),
        Panel(
            (
                *(*WHICH, _thousandths("ΔU", "gain", ci=True), _thousandths("A", "slope", ci=True)),
                *(_thousandths("Q", "quadratic"), _thousandths("ΔU−A", "accumulated_curvature")),
                Column("α̂", "{quadratic_scale:.2f}"),
                *(_thousandths("φ(1/4)", "quarter_gain"), _thousandths("φ(α̂)", "quadratic_gain")),
            ),
            "(b) Gains in nats",
        ),
        Panel(
            (
                *(*WHICH, Column("Utility after\n[95% CI]", "{utility:.4f}", ci=True)),
                Column("Best depth\n[95% CI]", "{best_depth}", ci=True),
                Column("Utility there\n[95% CI]", "{best_utility:.4f}", ci=True),
            ),
            "(c) Depth",
        ),
    ),
    notes=_notes,
)
def training(records: Records, bootstrap: Bootstrap) -> Iterator[Row]:
    """Every update at every step of a training: shares of outcomes, finite-step failures among harmful updates, mean
    gain, slope, quadratic coefficient and accumulated curvature, mean predicted scale and what quarter and quadratic
    steps gain; mean utility after the update, and the depth with the highest one. 95% intervals resample questions.
    """
    for one in trainings(records, bootstrap):
        for moment in (moment for moments in one.updates.values() for moment in moments):
            unknown = Estimate(None, moment.condition.n)
            depths = one.depths_at(moment.step)
            best = unknown if depths is None else depths.best
            there = unknown if depths is None or best.value is None else depths.utility[int(best.value)]
            measures = {name: moment.found.get(name, unknown) for name in MEASURES}
            values: Values = {
                "series": one.title,
                "step": moment.step,
                **measures,
                "best_depth": best,
                "best_utility": there,
            }
            yield Row(moment.condition, f"step {moment.step}", values)
