"""What the running text says of the tables: totals, ranges and factors."""

from collections.abc import Callable, Iterator
from decimal import Decimal

from loopscope.studies.paper.numbers import PaperRow, claims, models
from paper_arithmetic import (
    Check,
    Rounded,
    Scope,
    claim,
    exactly,
    follows,
    number,
    row,
    table,
)

HUNDRED = exactly(100)


def checks() -> Iterator[Check]:
    """All checks of the text against the tables."""
    yield from _totals()
    yield from _sweep()
    yield from _ranges()
    yield from _recovery()
    yield from _bounds()


def stated(name: str, rule: str, implied: Rounded) -> Check:
    """A check of one number of the text."""
    return follows(Scope.TEXT, f"{claims()[name].label}, {name}", rule, claim(name), implied)


def extremes(name: str, rule: str, values: list[Rounded]) -> Iterator[Check]:
    """Checks of a range `name_lowest`–`name_highest`, where the text states both."""
    ends: tuple[tuple[str, Callable[..., Rounded]], ...] = (("lowest", min), ("highest", max))
    for suffix, pick in ends:
        if f"{name}_{suffix}" in claims():
            yield stated(f"{name}_{suffix}", rule, pick(values, key=lambda rounded: rounded.value))


def _column(label: str, column: str) -> list[Rounded]:
    return [number(entry, column) for entry in table(label).rows]


def _total(values: list[Rounded]) -> Rounded:
    return sum(values, start=exactly(0))


def _totals() -> Iterator[Check]:
    sweep = table("tab:evaluation-coverage").rows
    per_model = [number(entry, "n") for entry in sweep if entry.setting.model == "Huginn"]
    matrix = [exactly(entry.setting.n) for entry in table("tab:mechanism-matrix").rows]
    bounds = table("tab:cloud-bound-comparison").rows
    transitions = table("tab:hellaswag-transitions").rows
    yield stated("questions_per_model", "sum of N", _total(per_model))
    yield stated("sweep_observations", "3 × sum of N", _total([number(entry, "n") for entry in sweep]))
    yield stated("matrix_observations", "sum of N over nine conditions", _total(matrix))
    yield stated("scalar_checks", "16 questions of each condition", exactly(16 * len(matrix)))
    yield stated("transition_records", "N × transitions", _total([exactly(entry.setting.n) for entry in transitions]))
    yield stated("transition_batches", "N in batches of two", exactly(-(-transitions[0].setting.n // 2)))
    yield stated("transition_checks", "16 questions of each transition", exactly(16 * len(transitions)))
    yield stated("token_batches", "1319 questions in batches of two", exactly(-(-1319 // 2)))
    yield stated("bound_records", "sum of N", _total([exactly(entry.setting.n) for entry in bounds]))
    yield stated("bound_primary", "sum of n", _total(_column("tab:cloud-bound-comparison", "n")))
    yield stated("signed_covered", "sum of covered", _total(_column("tab:cloud-bound-comparison", "signed_covers")))


def _sweep() -> Iterator[Check]:
    rows = table("tab:evaluation-coverage").rows
    declines = [entry for entry in rows if entry.cells["decline"].text != "---"]
    yield stated("sweep_conditions", "rows of tab:evaluation-coverage", exactly(len(rows)))
    yield stated("declines", "declines of tab:evaluation-coverage", exactly(len(declines)))
    for entry in declines:
        start, _, end = entry.cells["decline"].text.partition("->")
        depths = models()[entry.setting.model].depths
        where = f"tab:evaluation-coverage, {entry.setting.model} {entry.setting.evaluation_set}"
        yield follows(Scope.TABLE, f"{where}, decline", "the peak it falls from", start, number(entry, "peak"))
        nearest = min(depths, key=lambda depth, end=end: abs(depth - int(end)))  # type: ignore[misc]
        yield follows(Scope.TEXT, f"{where}, decline", "an evaluated depth", end, exactly(nearest))


def _ranges() -> Iterator[Check]:
    label = "tab:mechanism-matrix"
    yield from extremes("share", "share column", _column(label, "share"))
    yield from extremes("sign", "sign accuracy of A+Q", _column(label, "sign_quadratic"))
    factors = [number(entry, "mae_slope") / number(entry, "mae_quadratic") for entry in table(label).rows]
    yield from extremes("mae_factor", "MAE of A / MAE of A+Q", factors)
    generic = [
        number(entry, "spearman") for entry in table("tab:diagnostic-ranking").rows if not entry.key.startswith("slope")
    ]
    largest = max(generic, key=lambda rounded: abs(rounded.value))
    # "at most 0.285" is a bound: it must not lie below the largest correlation.
    bound = max(abs(largest.value), Decimal(claim("diagnostic_largest")))
    yield stated("diagnostic_largest", "at least the largest |correlation|", Rounded(bound))


def _recovery() -> Iterator[Check]:
    huginn = row("app:exp-protocol", "Huginn", "gsm8k/train256")
    yield stated("quarter_lowest", "13 of 18, Huginn gsm8k/train256", _rate(huginn, "recovered"))
    intervention = {entry.key: entry for entry in table("tab:quadratic-intervention").rows}
    yield stated("quarter_gsm8k", "306 of 431", _rate(intervention["quarter"], "recovered"))
    yield stated("quadratic_gsm8k", "406 of 431", _rate(intervention["quadratic"], "recovered"))
    rates = [_rate(entry, "recovered_quadratic") for entry in table("tab:hellaswag-transitions").rows]
    yield from extremes("transition_recovery", "recovered / failures", rates)
    tokens = table("tab:native-continue").rows
    yield from extremes("token_rate", "failure rates", [number(entry, "failure_rate") for entry in tokens])
    yield from extremes("token_recovery", "recovery rates", [number(entry, "quadratic_rate") for entry in tokens])
    failures = row("tab:curvature-selected-scale", "Ouro-1.4B", "math500/test", "failures")
    thousandth = Rounded(Decimal("0.001"))
    yield stated("bound_advantage", "gain over quarter", number(failures, "advantage") * thousandth)
    beyond = row("app:exp-fp64", "Ouro-1.4B", "math500/test", "failures")
    missed = number(failures, "selected_positive") - number(beyond, "beyond_margin")
    yield stated("margin_missed", "positive gains not beyond the margin", missed)


def _bounds() -> Iterator[Check]:
    label = "tab:cloud-bound-comparison"
    yield from extremes("integrated", "medians of C̄/κ", _column(label, "integrated_median"))
    yield from extremes("global", "medians of M/(2κ)", _column(label, "global_median"))
    # The share is over 2034 records: some whole number of them must round to it.
    total = _total(_column(label, "n")).value
    count = (Decimal(claim("integrated_below_one")) * total / 100).to_integral_value()
    yield stated("integrated_below_one", f"{count} of {total} records", Rounded(100 * count / total))
    oracle = row("tab:oracle-comparison", "Ouro-1.4B", "math500/test")
    yield stated("oracle_share_math", "tab:oracle-comparison", number(oracle, "share"))


def _rate(entry: PaperRow, column: str) -> Rounded:
    return HUNDRED * number(entry, column) / number(entry, "failures")
