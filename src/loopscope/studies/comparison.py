"""`loopscope compare`: every published number with a counterpart in the runs, the difference and a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from loopscope.stats import Bootstrap, Estimate, Interval
from loopscope.studies.conditions import Condition, Weights
from loopscope.studies.declare import TABLES, Column, Panel, Row, TableResult, Value, words
from loopscope.studies.paper import (
    Claim,
    PaperCell,
    PaperRow,
    Printed,
    Setting,
    cells,
    claims,
    models,
    tables,
)
from loopscope.studies.paper.numbers import EXACT
from loopscope.studies.populations import notes_on
from loopscope.studies.records import Records
from loopscope.studies.verdicts import (
    UNVERIFIED,
    Verdict,
    absent,
    distance,
    in_paper,
    judge,
    not_comparable,
    number_of,
    setting_differences,
)

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl

STAND_INS = "a rehearsal: the numbers in place of the published ones are made up from the runs' own"
NOT_CHECKED = "not checked: `loopscope verify RUN --bitwise` computes it a second time"
HEADS = ("column", "paper", "run", "run − paper", "covered", "verdict")
CLAIM_HEADS = ("claim", "paper", "runs", "verdict")
MARKS = {Verdict.REPRODUCES: "✓ ", Verdict.WITHIN: "≈ ", Verdict.DIFFERS: "✗ ", Verdict.NOT_COMPARABLE: "· "}


@dataclass(frozen=True)
class Compared:
    """One published number and the run's."""

    condition: Condition
    key: str
    """The row within the condition."""
    table: str
    """LaTeX label of the paper's table or section."""
    study: str
    measurement: str
    """Which of the paper's measurements; empty for claims, which may join several."""
    setting: str
    """The paper's condition."""
    column: str
    """Of claims: what the text says."""
    paper: str
    """As printed."""
    paper_value: float | str | None
    """In natural units."""
    quantity: str
    own: Value
    """The run's value."""
    own_text: str
    """In the paper's unit and digits."""
    difference: float | None
    """Run minus paper, natural units."""
    covers: bool | None
    """Whether the run's interval covers the published number; None without an interval."""
    same_setting: bool
    verdict: str
    """One line: `reproduces`, `within re-measurement: …`, `differs by …` or `not comparable because …`."""
    outcome: Verdict
    caveat: str
    """What cannot be checked even in the same setting."""
    next_to: str
    """The run's condition in words, of claims how many there are."""

    @property
    def covers_text(self) -> str:
        """Yes, no, or nothing to say."""
        return "" if self.covers is None else "yes" if self.covers else "no"


COLUMNS = (
    *(words("Table", "{table}"), words("Paper's setting", "{setting}"), words("Row", "{key}")),
    *(words("Column", "{column}"), Column("Paper", "{paper}"), Column("Run", "{own_text}")),
    *(Column("Covered", "{covers_text}"), words("Run's condition", "{next_to}"), words("Verdict", "{verdict}")),
)


@dataclass(frozen=True)
class Comparison:
    """All lines, and how they fall out."""

    rows: tuple[Compared, ...]
    """Cells of tables and numbers of the text, one by one."""
    claims: tuple[Compared, ...]
    """What the text says of several conditions at once."""
    uncompared: int
    """Published cells with nothing next to them."""
    notes: tuple[str, ...]

    def counts(self) -> Counter[Verdict]:
        """How many cells have each verdict."""
        return Counter(row.outcome for row in self.rows)

    def summary(self) -> str:
        """The result: how many cells have each verdict, and how many of the paper's conclusions hold."""
        if not self.rows and self.notes:
            return f"nothing to compare: {self.notes[-1]}; `loopscope diff A B` compares two of your own runs."
        said = f"{len(self.rows)} of {len(self.rows) + self.uncompared} published cells have a counterpart"
        said += f": {_counted(self.rows)}."
        if self.claims:
            holding = sum(claim.outcome.holds for claim in self.claims)
            said += f" Of the paper's {len(self.claims)} conclusions over several conditions {holding} hold"
            said += f" ({_counted(self.claims)})."
        return said

    def to_text(self) -> str:
        """Grouped by table and setting, then the claims, the notes and the summary."""
        if not self.rows:
            return self.summary()
        blocks = [
            _block(list(rows))
            for _, rows in groupby(
                self.rows, key=lambda row: (row.table, row.study, row.setting, row.key, row.condition)
            )
        ]
        if self.claims:
            lines = [
                (row.column, row.paper, row.own_text or "—", MARKS[row.outcome] + row.verdict) for row in self.claims
            ]
            blocks.append("\n".join(["what the text says of several conditions", *_aligned([CLAIM_HEADS, *lines])]))
        if self.notes:
            blocks.append("\n".join(f"note: {note}" for note in self.notes))
        return "\n\n".join([*blocks, self.summary()])

    def to_polars(self) -> pl.DataFrame:
        """One row per compared number, full precision."""
        return self.table().to_polars()

    def to_pandas(self) -> pd.DataFrame:
        """The same for pandas."""
        return self.table().to_pandas()

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<Comparison: {self.summary()}>"

    def _repr_html_(self) -> str:
        return self.table().to_html()

    def table(self) -> TableResult:
        """The lines as a table, for any renderer."""
        rows = []
        for line in (*self.rows, *self.claims):
            values: dict[str, Any] = {**vars(line), "covers_text": line.covers_text}
            for name in ("condition", "key"):
                values.pop(name)
            number, interval = number_of(line.own), line.own.interval if isinstance(line.own, Estimate) else None
            values["own"] = Estimate(number, line.condition.n, interval)
            values["outcome"] = str(line.outcome)
            values["paper_value"] = None if isinstance(line.paper_value, str) else line.paper_value
            rows.append(Row(line.condition, line.key, values))
        summary = self.summary()
        notes = (*self.notes, summary.rstrip(".")) if self.rows else (summary.rstrip("."),)
        title = "Published numbers and the run's"
        return TableResult("compare", "tab:compare", title, summary, tuple(rows), (Panel(COLUMNS),), notes)


def _block(rows: list[Compared]) -> str:
    first = rows[0]
    head = f"{first.table} · {first.setting}" + (f" · {first.key}" if first.key else "")
    head += f"\n  next to {first.next_to} (run {first.condition.run})"
    lines = [
        (
            *(row.column, row.paper, row.own_text or "—"),
            "—" if row.difference is None else f"{row.difference:+.3g}",
            *(row.covers_text or "—", MARKS[row.outcome] + row.verdict),
        )
        for row in rows
    ]
    if first.same_setting:
        return "\n".join([head, *_aligned([HEADS, *lines])])
    return "\n".join([head, f"  {first.verdict}", *_aligned([HEADS[:-1], *(line[:-1] for line in lines)])])


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """The first and the last column set left, unless the last holds numbers; the others right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = {0, len(HEADS) - 1, *((len(widths) - 1,) if lines[0] == CLAIM_HEADS else ())}
    return [
        "    "
        + "  ".join(
            c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def _counted(rows: Iterable[Compared]) -> str:
    """How many rows have each verdict, in words."""
    counts = Counter(row.outcome for row in rows)
    said = {
        Verdict.REPRODUCES: ("reproduces", "reproduce"),
        Verdict.WITHIN: ("lies within re-measurement", "lie within re-measurement"),
        Verdict.DIFFERS: ("differs", "differ"),
        Verdict.NOT_COMPARABLE: ("is not comparable", "are not comparable"),
    }
    return ", ".join(f"{counts[each]} {said[each][counts[each] != 1]}" for each in Verdict)


def compare(
    records: Records,
    bootstrap: Bootstrap | None = None,
    study: str | None = None,
    computed: Mapping[str, TableResult] | None = None,
    *,
    stand_ins: bool = False,
) -> Comparison:
    """Join every published number to the nearest condition of the runs.

    For each number the nearest row of the same study, model and task that defines it is taken: published weights
    first, then the same split, subset, transition, size and protocol; of equals the run whose name comes first, so the
    order of the runs decides nothing. Models and tasks that the paper does not have are named in one note.

    Args:
        records: the runs.
        bootstrap: resamples, seed and level; the paper's by default.
        study: only the numbers of this table study.
        computed: tables of the same bootstrap that there are already, by study, of all these records or of those that
            the study is meant for; the others are computed.
        stand_ins: rehearse it: settings are taken to be the paper's, and published numbers are made up from the runs'
            own, so that every verdict occurs.
    """
    conditions = [condition for _, condition in records.conditions()]
    left_out = absent(conditions)
    notes = (left_out,) if left_out else ()
    if not stand_ins and not any(map(in_paper, conditions)):
        return Comparison((), (), len(cells(study)), notes)
    chosen = [table for table in tables() if study in (None, table.study)]
    stated = [claim for claim in claims().values() if study in (None, claim.study)]
    known = dict(computed or {})
    for name in {*(table.study for table in chosen), *(claim.study for claim in stated)} - known.keys():
        known[name] = TABLES[name].table(records, bootstrap)
    if stand_ins:
        made = (line for table in chosen for row in table.rows for line in _rehearsed(row, known[table.study].rows))
        lines = tuple(made)
        said = (STAND_INS, *notes_on(line.condition for line in lines))
        return Comparison(lines, (), len(cells(study)) - len(lines), said)
    rows = tuple(line for table in chosen for row in table.rows for line in _lines(row, known[table.study].rows))
    somewhere = next(condition for condition in conditions if in_paper(condition))
    claimed = tuple(_claim_line(claim, known[claim.study].rows, records, somewhere) for claim in stated)
    caveats = dict.fromkeys(f"{row.setting}: {row.caveat}" for row in rows if row.same_setting and row.caveat)
    noted = notes_on(row.condition for row in rows) + tuple(caveats) + notes
    return Comparison(rows, claimed, len(cells(study)) - len(rows), noted)


def join(setting: Setting, key: str, rows: Iterable[Row], names: Sequence[str]) -> tuple[Row, tuple[str, ...]] | None:
    """The nearest row with that key that defines these values, and what keeps it from being the paper's setting."""
    found = []
    for row in rows:
        far = distance(row.condition, setting) if row.key == key else None
        if far is not None:
            differences = setting_differences(row.condition, setting)
            missing = sum(not name.startswith("condition.") and _missing(row.values.get(name)) for name in names)
            if (depths := row.values.get("depths")) is not None:
                wanted = ",".join(map(str, models()[setting.model].depths))
                differences += (f"its depths are {depths} (paper: {wanted})",) if depths != wanted else ()
            order = (bool(differences), missing if not differences else 0, far, missing, row.condition.run)
            found.append((order, row, differences))
    return min(found, key=lambda entry: entry[0])[1:] if found else None


def _missing(value: Value) -> bool:
    return value is None or (isinstance(value, Estimate) and value.value is None)


def _caveat(setting: Setting, condition: Condition) -> str:
    unverified = [UNVERIFIED] if condition.weights is Weights.UNVERIFIED else []
    return "; ".join([*unverified, *filter(None, [setting.caveat])])


def _lines(paper_row: PaperRow, rows: Sequence[Row]) -> Iterator[Compared]:
    for column, cell in paper_row.cells.items():
        joined = join(paper_row.setting, paper_row.key, rows, () if cell.without else (column,))
        if joined is None:
            continue
        row, differences = joined
        value = None if cell.without else row.value(column)
        number, interval = number_of(value), value.interval if isinstance(value, Estimate) else None
        if differences or cell.without:
            outcome, verdict = not_comparable(differences or [cell.without])
        else:
            states = row.condition.states
            outcome, verdict = judge(
                cell.quantity, cell.printed, cell.text, cell.unit, value, states, within=cell.range
            )
        yield Compared(
            row.condition,
            paper_row.key,
            table=cell.label,
            study=cell.study,
            measurement=paper_row.setting.measurement,
            setting=paper_row.setting.title,
            column=column,
            paper=cell.text,
            paper_value=cell.text if cell.value is None else cell.value,
            quantity=cell.quantity.name,
            own=value,
            own_text=own_text(cell, value),
            difference=None if number is None or cell.value is None else number - cell.value,
            covers=None if interval is None or cell.value is None else _covers(interval, cell),
            same_setting=not differences,
            verdict=verdict,
            outcome=outcome,
            caveat=_caveat(paper_row.setting, row.condition),
            next_to=str(row.condition),
        )


def _rehearsed(paper_row: PaperRow, rows: Sequence[Row]) -> Iterator[Compared]:
    """The row next to that of its stand-in, with numbers in place of the published ones that give each verdict."""
    setting = paper_row.setting
    alike = [
        replace(row, condition=replace(row.condition, weights=Weights.UNVERIFIED, split=setting.split, n=setting.n))
        for row in rows
    ]
    names = {row.condition: row.condition for row in rows}
    for place, line in enumerate(_lines(paper_row, alike)):
        cell, number = paper_row.cells[line.column], number_of(line.own)
        if number is None or cell.printed is None:
            continue
        shown = float(cell.printed.write(number / cell.unit))
        wanted = (shown, shown + (1 if cell.quantity.name in EXACT else 2e-3 * abs(shown)), 3 * abs(shown) + 10)[
            place % 3
        ]
        printed = Printed(cell.printed.write(wanted))
        outcome, verdict = judge(cell.quantity, printed, printed.text, cell.unit, line.own, "bfloat16")
        real = next(each for each in names if each.place == line.condition.place and each.task == line.condition.task)
        yield replace(
            line,
            condition=real,
            setting=f"stand-in for {line.setting}",
            paper=printed.text,
            paper_value=float(printed.text) * cell.unit,
            difference=number - float(printed.text) * cell.unit,
            same_setting=True,
            verdict=verdict,
            outcome=outcome,
            next_to=str(real),
        )


def _covers(interval: Interval, cell: PaperCell) -> bool:
    """Whether any number that rounds to the printed one lies in the interval."""
    value = cell.value or 0.0
    return interval.low <= value + cell.half_unit and value - cell.half_unit <= interval.high


def own_text(cell: PaperCell, value: Value) -> str:
    """The run's number in the unit and with the digits of the printed one."""
    if isinstance(value, str):
        return value
    number = number_of(value)
    if number is None or cell.printed is None:
        return ""
    interval = value.interval if isinstance(value, Estimate) else None
    ends = () if interval is None else (interval.low, interval.high)
    text, *range_ = (cell.printed.write(each / cell.unit) for each in (number, *ends))
    return f"{text} [{', '.join(range_)}]" if range_ else text


def _claim_line(claim: Claim, rows: Sequence[Row], records: Records, somewhere: Condition) -> Compared:
    """The value of a claim where every row that it is about has a run in the paper's setting, and the verdict."""
    names = claim.of
    found = [(setting, join(setting, key, rows, names)) for setting, key in claim.rows]
    joined = [one[0] for _, one in found if one is not None]
    missing = [setting.title for setting, one in found if one is None]
    other = [(setting.title, one[1]) for setting, one in found if one is not None and one[1]]
    value, printed = None, claim.number
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        outcome, verdict = not_comparable([f"no run has {missing[0]}{more}"])
    elif other:
        (where, reasons), more = other[0], f" (and so on for {len(other) - 1} more)" if len(other) > 1 else ""
        outcome, verdict = not_comparable([f"of {where} {', '.join(reasons)}{more}"])
    else:
        value = _verified(joined, claim.how, records) if claim.of_verification else claimed(joined, claim.how, claim.of)
        if value is None and claim.of_verification:
            outcome, verdict = Verdict.NOT_COMPARABLE, NOT_CHECKED
        else:
            states = joined[0].condition.states
            about = (claim.quantity, printed, claim.printed, claim.unit)
            outcome, verdict = judge(*about, value, states, relation=claim.relation)
    paper = float(printed.decimal) * claim.unit
    sign = {"above": "> ", "below": "< "}.get(claim.relation, "")
    title = claim.rows[0][0].title
    return Compared(
        joined[0].condition if joined else somewhere,
        "",
        table=claim.label,
        study=claim.study,
        measurement="",
        setting=title if len(claim.rows) == 1 else f"{len(claim.rows)} rows, from {title}",
        column=claim.says,
        paper=sign + claim.printed,
        paper_value=paper,
        quantity=claim.quantity.name,
        own=value,
        own_text="" if value is None else printed.write(value / claim.unit),
        difference=None if value is None else value - paper,
        covers=None,
        same_setting=value is not None,
        verdict=verdict,
        outcome=outcome,
        caveat="; ".join(dict.fromkeys(UNVERIFIED for row in joined if row.condition.weights is Weights.UNVERIFIED)),
        next_to=f"{len(joined)} of {len(claim.rows)} rows",
    )


def _verified(rows: Sequence[Row], how: str, records: Records) -> float | None:
    """What a second computation of these rows' runs gave: `equal` batches, or the `largest` difference of values."""
    found = [records.verification(row.condition) for row in rows]
    known = [comparisons for comparisons in found if comparisons]
    if len(known) < len(found):
        return None
    if how == "equal":
        batches = [next((each for each in one if each["of"] == "batches"), None) for one in known]
        same = [each["compared"] - each["differing"] for each in batches if each is not None]
        return float(sum(same)) if same and len(same) == len(known) else None
    gaps = [each["largest"] for one in known for each in one if each["what"].startswith("utilities")]
    return None if not gaps or None in gaps else max(gaps)


def claimed(rows: Sequence[Row], how: str, of: Sequence[str]) -> float | None:
    """What a claim makes of its rows; None where one of them lacks the number."""
    if how == "rows":
        return float(len(rows))
    if how == "present":
        return float(sum(row.value(of[0]) is not None for row in rows))
    if how == "unresolved":
        intervals = [row[of[0]].interval for row in rows]
        return float(sum(each is not None and each.covers(0.0) for each in intervals))
    columns = [[number_of(row.value(name)) for row in rows] for name in of]
    known = [[value for value in column if value is not None] for column in columns]
    if any(len(column) < len(rows) for column in known):
        return None
    first, second = known[0], known[-1]
    if how == "less":
        return sum(first) - sum(second)
    if how == "pooled":
        return sum(a * b for a, b in zip(first, second, strict=True)) / sum(second)
    if len(of) == 2:
        if not all(second):
            return None
        first = [a / b for a, b in zip(first, second, strict=True)]
    if how == "largest":
        return max(map(abs, first))
    if how == "sum":
        return sum(first)
    return min(first) if how == "lowest" else max(first)
