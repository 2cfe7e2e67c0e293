"""A run in a few sentences and one table: what `print(run)`, `loopscope demo` and the first view of the page say.

The update that leads is chosen by the data: the earliest whose mean gain is below zero with its whole interval.
Intervals resample questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from loopscope.stats import Bootstrap, Estimate, Mean
from loopscope.store import StoredRun
from loopscope.studies.records import Mask, Records, Updates


@dataclass(frozen=True)
class Finding:
    """What one update did to all questions of a set, in counts."""

    update: str
    """`4→5`."""
    kind: str
    """`solution` or `options`."""
    questions: int
    harmful: int
    failures: int
    """Finite-step failures."""
    predicted: int | None
    """Of these, how many gain at the scale that slope and curvature predict; None where it was not measured."""

    def title(self, model: str) -> str:
        """The finding in a few words."""
        where = f"{model}: loop {self.update}"
        if self.failures:
            return f"{where} goes too far on {self.failures} of {self.questions} questions"
        if self.harmful:
            return f"{where} goes the wrong way on {self.harmful} of {self.questions} questions"
        return f"{where} harms no question"

    def sentence(self, subject: str = "It") -> str:
        """What the title rests on; a subject is named where no title stands above."""
        options = self.kind == "options"
        if not self.harmful:
            what = "the right option of none" if options else "no reference"
            return f"{subject} makes {what} of the {self.questions} questions less likely."
        if options:
            said = f"{subject} makes the right option less likely for {self.harmful} of {self.questions} questions"
        else:
            said = f"{subject} makes {self.harmful} of {self.questions} references less likely"
        if not self.failures:
            return f"{said}; none of these updates starts in a helpful direction."
        share, wrong = percent(self.failures / self.harmful), self.harmful - self.failures
        said += (
            f". {self.failures} of these updates ({share}) are finite-step failures: the direction helps, the step is"
            " too long."
        )
        if wrong:
            said += f" The other {wrong} start{'s' * (wrong == 1)} in the wrong direction."
        if self.predicted is not None:
            said += f" A step of the length that slope and curvature predict recovers {self.predicted} of them."
        return said

    def meaning(self) -> str:
        """What that means, in two sentences."""
        if self.failures:
            which = "the right option" if self.kind == "options" else "the reference"
            return (
                "One more loop is a direction and a length: in these cases the direction helps and the length "
                f"overshoots, so a shorter step the same way would have made {which} more likely. Slope and curvature "
                "at the start of the step predict it, but they are made with the answer at hand: they explain "
                "failures and do not choose steps."
            )
        if self.harmful:
            return (
                "Where this loop harms, it starts in the wrong direction, so a short step the same way harms as well. "
                "It is the direction that fails here, not the length of the step."
            )
        return (
            "At this depth one more loop does no harm to any question. What more loops do is seen at the other updates."
        )


def finding(updates: Updates) -> Finding:
    """What one update did, counted over its questions."""
    return Finding(
        update=updates.condition.update,
        kind=updates.condition.kind,
        questions=len(updates),
        harmful=int(updates.harmful.sum()),
        failures=int(updates.finite_step.sum()),
        predicted=_recovered(updates, updates.finite_step),
    )


def _recovered(updates: Updates, failures: Mask) -> int | None:
    """How many failures gain at the predicted scale, with the gains of the table `quadratic-intervention`.

    These are of the state rounded to BF16; without rounding where a run has no such column, None without either.
    """
    column = next((name for name in ("bf16_quadratic_gain", "quadratic_gain") if updates.has(name)), None)
    return None if column is None else int((updates.floats(column)[failures] > 0).sum())


def mean_gain(updates: Updates, bootstrap: Bootstrap) -> Estimate:
    """Mean gain of the full step."""
    return bootstrap.estimate({"gain": Mean(updates.gain)})["gain"]


def clearly(estimate: Estimate) -> int:
    """1 where the whole interval lies above zero, -1 where it lies below, 0 where it does neither."""
    interval = estimate.interval
    return 0 if interval is None else (interval.low > 0) - (interval.high < 0)


def leading_update(updates: Sequence[Updates], full: Sequence[Estimate]) -> int:
    """The place of the leading update: the earliest that clearly lowers the mean utility.

    Where none does, the one with most finite-step failures, then the one with most harmful updates.

    Args:
        updates: of one evaluation set, by transition.
        full: mean gain of the full step of each.
    """
    for place, estimate in enumerate(full):
        if clearly(estimate) < 0:
            return place
    counts = [(int(each.finite_step.sum()), int(each.harmful.sum())) for each in updates]
    return max(range(len(updates)), key=lambda place: (*counts[place], place))


def first_finding(run: StoredRun, bootstrap: Bootstrap | None = None) -> Finding:
    """The finding at the leading update of a run's first task."""
    updates = Records([run]).updates
    updates = tuple(each for each in updates if each.condition.same_set(updates[0].condition))
    return finding(updates[leading_update(updates, [mean_gain(each, bootstrap or Bootstrap()) for each in updates])])


def run_lines(run: StoredRun, bootstrap: Bootstrap | None = None) -> list[str]:
    """A line for every update of a run, or for every depth of a run without updates."""
    manifest = run.manifest
    about = f"{manifest.model.name}, level {manifest.level}, states {manifest.dtypes.states}: {run.path}"
    if not manifest.transitions:
        means = run.depths.group_by("task", "depth", maintain_order=True).agg(n=pl.len(), mean=pl.mean("utility"))
        rows = [(task, depth, n, f"{mean:+.5f}") for task, depth, n, mean in means.rows()]
        return [about, *_aligned([("task", "depth", "questions", "mean utility"), *rows])]
    updates = Records([run]).updates
    heads = ("task", "update", "n", "mean gain", "harmful", "finite-step", "recovered")
    lines = [about, *_aligned([heads, *(_cells(each, bootstrap or Bootstrap()) for each in updates)])]
    if any(each.has("quadratic_gain") for each in updates):
        rounded = ", states rounded to BF16" if any(each.has("bf16_quadratic_gain") for each in updates) else ""
        lines.append(f"recovered: finite-step failures that gain at the predicted step length{rounded}")
    return lines


def _cells(updates: Updates, bootstrap: Bootstrap) -> tuple[object, ...]:
    found, gain = finding(updates), mean_gain(updates, bootstrap)
    interval = "" if gain.interval is None else f" [{gain.interval.low:+.5f}, {gain.interval.high:+.5f}]"
    recovered = "—" if found.predicted is None else f"{found.predicted} of {found.failures}"
    mean = "—" if gain.value is None else f"{gain.value:+.5f}"
    task = updates.condition.task
    return task, found.update, found.questions, mean + interval, found.harmful, found.failures, recovered


def percent(share: float) -> str:
    """A share as a percentage.

    >>> percent(0.1234), percent(1.0)
    ('12.3%', '100%')
    """
    return f"{100 * share:.1f}%".replace(".0%", "%")


def _aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell!s:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
