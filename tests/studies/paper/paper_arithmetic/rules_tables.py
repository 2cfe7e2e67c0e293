"""What each table implies about itself: shares from counts, differences from means, totals from parts."""

from collections.abc import Iterator
from decimal import Decimal

from loopscope.studies.paper.numbers import PaperRow, tables
from paper_arithmetic import (
    Check,
    Rounded,
    Scope,
    exactly,
    follows,
    name_of,
    number,
    row,
    table,
    text,
)

HUNDRED = exactly(100)
AFFINE_TASKS = ("math500", "gsm8k")


def checks() -> Iterator[Check]:
    """All checks within single tables (and pairs of tables of one measurement)."""
    yield from _mechanism()
    yield from _shares()
    yield from _scales()
    yield from _refined()
    yield from _interventions()
    yield from _transitions()
    yield from _tokens()
    yield from _bounds()
    yield from _intervals()


def is_affine(entry: PaperRow) -> bool:
    """Whether the utility is a mean log-softmax of affine logits, hence concave along the update."""
    return entry.setting.model.startswith("Ouro") and entry.setting.task in AFFINE_TASKS


def same(label: str, entry: PaperRow, column: str, rule: str, implied: Rounded) -> Check:
    """A check within one measurement."""
    return follows(Scope.TABLE, name_of(entry, label, column), rule, text(entry, column), implied)


def at_most(label: str, entry: PaperRow, column: str, rule: str, limit: Rounded) -> Check:
    """A check that a printed number does not exceed another; the excess is the discrepancy."""
    value = number(entry, column)
    implied = Rounded(min(value.value, limit.value), limit.error)
    return same(label, entry, column, rule, implied)


def _mechanism() -> Iterator[Check]:
    label = "tab:mechanism-matrix"
    for entry in table(label).rows:
        share = HUNDRED * number(entry, "finite_step") / number(entry, "harmful")
        yield same(label, entry, "share", "finite-step / harmful", share)
        for column in ("sign_slope", "sign_quadratic"):
            questions = Decimal(entry.setting.n)
            right = (number(entry, column).value * questions / 100).to_integral_value()
            nearest = Rounded(100 * right / questions)
            yield same(label, entry, column, f"{right} of {questions} questions", nearest)
        if is_affine(entry):
            # Concavity: a progressing update has A > 0, so sign(A) errs on the finite-step failures alone.
            wrong = HUNDRED * number(entry, "finite_step") / exactly(entry.setting.n)
            rule = "1 − finite-step / N (concave path)"
            yield same(label, entry, "sign_slope", rule, HUNDRED - wrong)


def _shares() -> Iterator[Check]:
    label = "tab:mechanism-intervals"
    for entry in table(label).rows:
        matrix = row("tab:mechanism-matrix", entry.setting.model, entry.setting.evaluation_set)
        share = HUNDRED * number(matrix, "finite_step") / number(matrix, "harmful")
        yield same(label, entry, "share", "finite-step / harmful of the matrix", share)
        yield at_most(label, entry, "beyond_margin", "finite-step failures", number(matrix, "finite_step"))


def _scales() -> Iterator[Check]:
    label = "tab:step-prediction"
    for entry in table("tab:scale-prediction-main").rows:
        full = row(label, entry.setting.model, entry.setting.evaluation_set)
        for column in entry.cells:
            yield same("tab:scale-prediction-main", entry, column, f"the same cell of {label}", number(full, column))
    for entry in table("app:exp-scale-details").rows:
        if "advantage" in entry.cells:
            full = row(label, entry.setting.model, entry.setting.evaluation_set)
            gain = number(full, "first_order_regret") - number(full, "quadratic_regret")
            yield same("app:exp-scale-details", entry, "advantage", "first-order − quadratic regret", gain)
    label = "tab:progress-boundary"
    for entry in table(label).rows:
        primary = row("tab:step-prediction", entry.setting.model, entry.setting.evaluation_set)
        yield same(label, entry, "primary", "n of tab:step-prediction", number(primary, "n"))
        yield same(
            label, entry, "primary", "crossings + none", number(entry, "crossings") + number(entry, "unobserved")
        )
        rate = HUNDRED * number(entry, "hits") / number(entry, "crossings")
        yield same(label, entry, "hit_rate", "hits / crossings", rate)


def _refined() -> Iterator[Check]:
    label = "tab:fp64-path-prediction"
    for model, evaluation_set in (("Ouro-1.4B", "math500/test"), ("Huginn", "gsm8k/train256")):
        everything = row(label, model, evaluation_set, "all")
        primary = row(label, model, evaluation_set, "primary")
        interior = row(label, model, evaluation_set, "interior")
        kinds = row("app:exp-fp64", model, evaluation_set, "all")
        total = number(kinds, "left") + number(kinds, "interior") + number(kinds, "right")
        yield same(label, everything, "n", "left + interior + right optima", total)
        yield same(label, interior, "n", "interior optima", number(kinds, "interior"))
        if is_affine(primary):
            moving = number(kinds, "interior") + number(kinds, "right")
            yield same(label, primary, "n", "optima above zero (concave path)", moving)
        # Where A ≤ 0 both scales are zero, so the primary records carry the whole error of the set.
        for column in everything.cells:
            if column != "n":
                mean = number(primary, column) * number(primary, "n") / number(everything, "n")
                yield same(label, everything, column, "primary mean × primary n / N", mean)


def _interventions() -> Iterator[Check]:
    label = "tab:quadratic-intervention"
    quarter, quadratic, difference = table(label).rows
    for entry in (quarter, quadratic):
        rate = HUNDRED * number(entry, "recovered") / number(entry, "failures")
        yield same(label, entry, "recovery", "recovered / failures", rate)
    for column in ("mean_gain", "recovered", "recovery"):
        between = number(quadratic, column) - number(quarter, column)
        yield same(label, difference, column, "quadratic − quarter", between)
    label = "tab:interventions-main"
    main = row(label, "Ouro-1.4B", "gsm8k/test")
    yield same(label, main, "mean_gain", "tab:quadratic-intervention", number(quadratic, "mean_gain"))
    yield same(label, main, "advantage", "tab:quadratic-intervention", number(difference, "mean_gain"))
    yield same(label, main, "failures", "tab:quadratic-intervention", number(quadratic, "failures"))
    bound = row(label, "Ouro-1.4B", "math500/test")
    selected = row("tab:curvature-selected-scale", "Ouro-1.4B", "math500/test", "failures")
    for here, there in (
        ("recovered_quarter", "quarter_positive"),
        ("recovered_selected", "selected_positive"),
        ("failures", "n"),
        ("mean_gain", "mean_gain"),
        ("advantage", "advantage"),
    ):
        yield same(label, bound, here, "tab:curvature-selected-scale", number(selected, there))


def _transitions() -> Iterator[Check]:
    label = "tab:hellaswag-transitions"
    for entry in table(label).rows:
        gain = number(entry, "quadratic") - number(entry, "full")
        yield same(label, entry, "over_full", "quadratic − full", gain)
        for column in ("recovered_quarter", "recovered_quadratic"):
            yield at_most(label, entry, column, "failures", number(entry, "failures"))
        margin = next(
            other
            for other in table("app:hellaswag-transitions").rows
            if other.setting.transition == entry.setting.transition
        )
        recovered = number(entry, "recovered_quadratic")
        yield at_most("app:hellaswag-transitions", margin, "recovered_beyond_margin", "recovered", recovered)


def _tokens() -> Iterator[Check]:
    label = "tab:native-continue"
    populations = [entry for entry in table("app:native-continue").rows if "beyond_margin" in entry.cells]
    for entry, population in zip(table(label).rows, populations, strict=True):
        rate = HUNDRED * number(entry, "failures") / number(population, "positions")
        yield same(label, entry, "failure_rate", "failures / positions", rate)
        for count, column in (("recovered_quarter", "quarter_rate"), ("recovered_quadratic", "quadratic_rate")):
            recovered = HUNDRED * number(entry, count) / number(entry, "failures")
            yield same(label, entry, column, "recovered / failures", recovered)
        for column, other in (("over_full", "full"), ("over_quarter", "quarter")):
            between = number(entry, "quadratic") - number(entry, other)
            yield same(label, entry, column, f"quadratic − {other}", between)
        yield at_most(
            "app:native-continue", population, "beyond_margin", "finite-step failures", number(entry, "failures")
        )


def _bounds() -> Iterator[Check]:
    label = "tab:cloud-bound-comparison"
    refined = table("tab:bound-reference-refinement").rows
    for entry in table(label).rows:
        missed = sum(
            (other.setting.model, other.setting.task) == (entry.setting.model, entry.setting.task) for other in refined
        )
        yield same(label, entry, "integrated_covers", "n", number(entry, "n"))
        rule = "n − rows of tab:bound-reference-refinement"
        yield same(label, entry, "signed_covers", rule, number(entry, "n") - exactly(missed))
    label = "tab:bound-reference-refinement"
    for entry in refined:
        margin = (number(entry, "signed_bound") - number(entry, "refined_upper")) * exactly(100_000)
        yield same(label, entry, "margin", "bound − refined error", margin)
        yield at_most(
            label, entry, "signed_bound", "the original error it fails to cover", number(entry, "error_upper")
        )
    compared = row("tab:cloud-bound-comparison", "Ouro-1.4B", "math500/test")
    for key, column in (("median", "integrated_median"), ("p75", "integrated_p75")):
        entry = row("tab:integrated-bound-distribution", "Ouro-1.4B", "math500/test", key)
        rule = "tab:cloud-bound-comparison"
        yield same("tab:integrated-bound-distribution", entry, "scale_bound", rule, number(compared, column))


def _intervals() -> Iterator[Check]:
    labels = dict.fromkeys(
        cell.label for entry in _all_rows() for cell in entry.cells.values() if cell.interval is not None
    )
    for label in labels:
        for entry in table(label).rows:
            for column, cell in entry.cells.items():
                if cell.interval is not None and cell.printed is not None:
                    low, high = (end.decimal for end in cell.interval)
                    inside = min(max(cell.printed.decimal, low), high)
                    yield same(label, entry, column, "its own interval", Rounded(inside))


def _all_rows() -> Iterator[PaperRow]:
    for entry in tables():
        yield from entry.rows
