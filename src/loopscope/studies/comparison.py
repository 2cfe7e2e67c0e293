"""`loopscope compare`: every published number with a counterpart in the runs, the difference and a verdict."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from loopscope.stats import Bootstrap, Estimate
from loopscope.store.verification import stored_verification
from loopscope.studies import paper, verdicts
from loopscope.studies.conditions import Condition, Weights
from loopscope.studies.declare import TABLES, Column, Panel, Row, TableResult, Value, words
from loopscope.studies.paper import Claim, PaperCell, PaperRow, PaperTable, Setting
from loopscope.studies.populations import notes_on
from loopscope.studies.records import Records
from loopscope.studies.verdicts import UNVERIFIED, Verdict, judge, not_comparable, number_of

if TYPE_CHECKING:
    import polars as pl

STAND_INS = "a rehearsal: the numbers in place of the published ones are made up from the runs' own"
NOT_CHECKED = "not checked: `loopscope verify RUN --bitwise` computes it a second time"
BOUNDS = {"above": "> ", "below": "< "}
MARKS = {Verdict.REPRODUCES: "✓ ", Verdict.WITHIN: "≈ ", Verdict.DIFFERS: "✗ ", Verdict.NOT_COMPARABLE: "· "}


@dataclass(frozen=True)
class Compared:
    """One published number and the run's.

    Attributes:
        cell: the number.
        condition: of the run.
        own: the run's value.
        outcome: how they compare.
        verdict: one line: `reproduces`, `within re-measurement: …`, `differs by …` or `not comparable because …`.
        same_setting: whether the run is in the paper's setting.
        setting: the paper's condition, in words.
        next_to: the run's condition in words, of claims how many there are.
        caveat: what cannot be checked even in the same setting.
    """

    cell: PaperCell
    condition: Condition
    own: Value
    outcome: Verdict
    verdict: str
    same_setting: bool
    setting: str
    next_to: str
    caveat: str = ""

    @property
    def difference(self) -> float | None:
        """Run minus paper, natural units."""
        number = number_of(self.own)
        return None if number is None or self.cell.value is None else number - self.cell.value

    @property
    def own_text(self) -> str:
        """The run's number in the unit and with the digits of the printed one."""
        number, printed = number_of(self.own), self.cell.printed
        if number is None or printed is None:
            return self.own if isinstance(self.own, str) else ""
        interval = self.own.interval if isinstance(self.own, Estimate) else None
        ends = () if interval is None else (interval.low, interval.high)
        text, *range_ = (printed.write(each / self.cell.unit) for each in (number, *ends))
        return f"{text} [{', '.join(range_)}]" if range_ else text

    def row(self) -> Row:
        """The line as a row of a table."""
        cell, interval = self.cell, self.own.interval if isinstance(self.own, Estimate) else None
        names = ("setting", "own_text", "same_setting", "verdict", "next_to", "caveat", "difference")
        values: dict[str, Any] = {
            "table": cell.label,
            "study": cell.study,
            "measurement": cell.setting.measurement,
            "column": cell.column,
            "paper": BOUNDS.get(cell.relation, "") + cell.text,
            "paper_value": cell.value,
            "quantity": cell.quantity,
            "own": Estimate(number_of(self.own), self.condition.n, interval),
            **{name: getattr(self, name) for name in names},
            "outcome": str(self.outcome),
            "marked": MARKS[self.outcome] + self.verdict,
            "difference_text": "" if self.difference is None else f"{self.difference / cell.unit:+.3g}",
        }
        return Row(self.condition, cell.key, values)


WHERE = (words("Table", "{table}"), words("Paper's setting", "{setting}"), words("Row", "{key}"))
NUMBERS = (words("Column", "{column}"), Column("Paper", "{paper}"), Column("Run", "{own_text}"))
DIFFERENCE = Column("Run − paper", "{difference_text}")
ALL = (*WHERE, *NUMBERS, words("Run's condition", "{next_to}"), words("Verdict", "{verdict}"))
MARKED = words("Verdict", "{marked}")


def _table(title: str, lines: Iterable[Compared], columns: Sequence[Column], **more: Any) -> TableResult:
    about: Any = {"caption": "", **more}
    return TableResult(
        "compare",
        "tab:compare",
        title,
        rows=tuple(line.row() for line in lines),
        panels=(Panel(tuple(columns)),),
        **about,
    )


@dataclass(frozen=True)
class Comparison:
    """All lines, and their verdicts.

    Attributes:
        rows: cells of tables and numbers of the text, one by one.
        claims: what the text says of several conditions at once.
        uncompared: published cells with nothing next to them.
        notes: what a reader must know.
    """

    rows: tuple[Compared, ...]
    claims: tuple[Compared, ...]
    uncompared: int
    notes: tuple[str, ...]

    def summary(self) -> str:
        """The result: how many cells have each verdict, and how many of the paper's conclusions hold."""
        if not self.rows and self.notes:
            return f"nothing to compare: {self.notes[-1]}; `loopscope diff A B` compares two of your own runs."
        said = f"{len(self.rows)} of {len(self.rows) + self.uncompared} published cells have a counterpart"
        said += f": {_counted(self.rows)}."
        if self.claims:
            holding = sum(claim.outcome.holds for claim in self.claims)
            said += f" {holding} of the paper's {len(self.claims)} conclusions over several conditions hold"
            said += f" ({_counted(self.claims)})."
        return said

    def to_text(self) -> str:
        """Grouped by table and setting, then the claims, the notes and the summary."""
        if not self.rows:
            return self.summary()
        blocks = []
        for _, lines in groupby(self.rows, lambda line: (line.cell.label, line.setting, line.cell.key, line.condition)):
            first, *others = lines
            head = " · ".join(filter(None, (first.cell.label, first.setting, first.cell.key)))
            head += f"\n  next to {first.next_to} (run {first.condition.run})"
            head += "" if first.same_setting else f"\n  {first.verdict}"
            columns = (*NUMBERS, DIFFERENCE, *([MARKED] if first.same_setting else []))
            blocks.append(_table(head, (first, *others), columns).to_text())
        if self.claims:
            claim = (words("Claim", "{column}"), *NUMBERS[1:], MARKED)
            blocks.append(_table("What the text says of several conditions", self.claims, claim).to_text())
        blocks += ["\n".join(f"note: {note}" for note in self.notes)] if self.notes else []
        return "\n\n".join([*blocks, self.summary()])

    def table(self) -> TableResult:
        """The lines as a table, for any renderer."""
        summary = self.summary()
        notes = (*(self.notes if self.rows else ()), summary.rstrip("."))
        about: Any = {"caption": summary, "notes": notes}
        return _table("Published numbers and the run's", (*self.rows, *self.claims), ALL, **about)

    def to_polars(self) -> pl.DataFrame:
        """One row per compared number, full precision."""
        return self.table().to_polars()

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<Comparison: {self.summary()}>"

    def _repr_markdown_(self) -> str:
        return self.table().to_markdown()


def _counted(rows: Iterable[Compared]) -> str:
    """How many rows have each verdict."""
    counts = Counter(row.outcome for row in rows)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict)


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
    left_out = tuple(filter(None, [verdicts.absent(conditions)]))
    if not stand_ins and not any(map(verdicts.in_paper, conditions)):
        return Comparison((), (), len(paper.cells(study)), left_out)
    chosen = [table for table in paper.tables() if study in (None, table.study)]
    stated = [claim for claim in paper.claims().values() if study in (None, claim.cell.study)]
    known = dict(computed or {})
    for name in {*(table.study for table in chosen), *(claim.cell.study for claim in stated)} - known.keys():
        known[name] = TABLES[name].table(records, bootstrap)
    lines_of = _rehearsed if stand_ins else _lines
    found = [line for table in chosen for row in table.rows for line in lines_of(row, known[table.study].rows)]
    missing = len(paper.cells(study)) - len(found)
    if stand_ins:
        return Comparison(tuple(found), (), missing, (STAND_INS, *notes_on(line.condition for line in found)))
    rows = _remeasured(found)
    somewhere = next(filter(verdicts.in_paper, conditions))
    holding = {(row.cell.study, row.setting, row.cell.key, row.cell.column) for row in rows if row.outcome.holds}
    claimed = tuple(_claim_line(claim, known[claim.cell.study].rows, records, somewhere, holding) for claim in stated)
    caveats = dict.fromkeys(f"{row.setting}: {row.caveat}" for row in rows if row.same_setting and row.caveat)
    return Comparison(rows, claimed, missing, (*notes_on(row.condition for row in rows), *caveats, *left_out))


def join(setting: Setting, key: str, rows: Iterable[Row], names: Sequence[str]) -> tuple[Row, tuple[str, ...]] | None:
    """The nearest row with that key that defines these values, and what keeps it from being the paper's setting."""
    found = []
    for row in rows:
        far = verdicts.distance(row.condition, setting) if row.key == key else None
        if far is not None:
            differences = verdicts.setting_differences(row.condition, setting)
            missing = sum(not name.startswith("condition.") and _missing(row.values.get(name)) for name in names)
            if (depths := row.values.get("depths")) is not None:
                wanted = ",".join(map(str, paper.models()[setting.model].depths))
                differences += (f"its depths are {depths} (paper: {wanted})",) if depths != wanted else ()
            order = (bool(differences), missing if not differences else 0, far, missing, row.condition.run)
            found.append((order, row, differences))
    return min(found, key=lambda entry: entry[0])[1:] if found else None


def _missing(value: Value) -> bool:
    return value is None or (isinstance(value, Estimate) and value.value is None)


def _lines(paper_row: PaperRow, rows: Sequence[Row]) -> Iterator[Compared]:
    setting = paper_row.setting
    for column, cell in paper_row.cells.items():
        joined = join(setting, paper_row.key, rows, () if cell.without else (column,))
        if joined is None:
            continue
        (row, differences), reasons = joined, joined[1] or tuple(filter(None, [cell.without]))
        condition, value = row.condition, None if cell.without else row[column]
        outcome, verdict = not_comparable(reasons) if reasons else judge(cell, value, condition.states)
        caveat = "; ".join(filter(None, [_unverified(condition), setting.caveat]))
        about = (not differences, setting.title, str(condition), caveat)
        yield Compared(cell, condition, value, outcome, verdict, *about)


def _unverified(condition: Condition) -> str:
    return UNVERIFIED if condition.weights is Weights.UNVERIFIED else ""


def _remeasured(lines: Sequence[Compared]) -> tuple[Compared, ...]:
    """The lines, where an estimate that differs lies within re-measurement if its interval overlaps the published one
    and every count of its setting is within what the paper counts twice.
    """
    counts: dict[tuple[Setting, str], list[bool]] = defaultdict(list)
    for line in lines:
        if line.cell.quantity in verdicts.COUNTED_TWICE and line.outcome is not Verdict.NOT_COMPARABLE:
            counts[line.cell.setting, line.condition.run].append(line.outcome.holds)
    rows = []
    for line in lines:
        held = counts[line.cell.setting, line.condition.run]
        if line.outcome is Verdict.DIFFERS and held and all(held) and verdicts.overlaps(line.own, line.cell):
            line = replace(line, outcome=Verdict.WITHIN, verdict=_within(line.verdict))
        rows.append(line)
    return tuple(rows)


def _within(verdict: str) -> str:
    return verdict.replace("differs by", "within re-measurement:", 1)


def _rehearsed(paper_row: PaperRow, rows: Sequence[Row]) -> Iterator[Compared]:
    """The row next to that of its stand-in, with numbers in place of the published ones that give each verdict."""
    setting = paper_row.setting
    real = {(row.condition.place, row.condition.task): row.condition for row in rows}
    alike = [
        replace(row, condition=replace(row.condition, weights=Weights.UNVERIFIED, split=setting.split, n=setting.n))
        for row in rows
    ]
    for place, line in enumerate(_lines(paper_row, alike)):
        number, printed = number_of(line.own), line.cell.printed
        if number is None or printed is None:
            continue
        shown = float(printed.write(number / line.cell.unit))
        near = shown + (1 if line.cell.quantity in paper.EXACT else 2e-3 * abs(shown))
        cell = replace(line.cell, text=printed.write((shown, near, 3 * abs(shown) + 10)[place % 3]))
        outcome, verdict = judge(cell, line.own, "bfloat16")
        condition = real[line.condition.place, line.condition.task]
        about = (True, f"stand-in for {line.setting}", str(condition), line.caveat)
        yield Compared(cell, condition, line.own, outcome, verdict, *about)


def _claim_line(
    claim: Claim, rows: Sequence[Row], records: Records, somewhere: Condition, holding: AbstractSet[tuple[str, ...]]
) -> Compared:
    """The value of a claim where every row that it is about has a run in the paper's setting, and the verdict.

    What differs lies within re-measurement where every published number that it is made of holds.
    """
    found = [(setting.title, join(setting, key, rows, claim.of)) for setting, key in claim.rows]
    joined = [one[0] for _, one in found if one is not None]
    reasons = [f"no run has {where}" for where, one in found if one is None]
    reasons = reasons or [f"of {where} {', '.join(one[1])}" for where, one in found if one is not None and one[1]]
    value = None
    if reasons:
        more = [f"the same of {len(reasons) - 1} more"] if len(reasons) > 1 else []
        outcome, verdict = not_comparable([reasons[0], *more])
    else:
        value = _verified(joined, claim.how, records) if claim.of_verification else claimed(joined, claim.how, claim.of)
        outcome, verdict = judge(claim.cell, value, joined[0].condition.states)
        verdict = NOT_CHECKED if value is None and claim.of_verification else verdict
        made_of = {(claim.cell.study, setting.title, key, name) for setting, key in claim.rows for name in claim.of}
        if outcome is Verdict.DIFFERS and not claim.cell.relation and made_of <= holding:
            outcome, verdict = Verdict.WITHIN, _within(verdict)
    title, condition = claim.cell.setting.title, joined[0].condition if joined else somewhere
    where = title if len(claim.rows) == 1 else f"{len(claim.rows)} rows, from {title}"
    caveat = next(filter(None, (_unverified(row.condition) for row in joined)), "")
    about = (value is not None, where, f"{len(joined)} of {len(claim.rows)} rows", caveat)
    return Compared(claim.cell, condition, value, outcome, verdict, *about)


def _verified(rows: Sequence[Row], how: str, records: Records) -> float | None:
    """What a second computation of these rows' runs gave: `equal` batches, or the `largest` difference of values."""
    stored = [stored_verification(records.run_of(row.condition)) for row in rows]
    known = [one.comparisons for one in stored if one is not None and one.comparisons]
    if len(known) < len(rows):
        return None
    if how == "equal":
        same = [each.compared - each.differing for one in known for each in one if each.of == "batches"]
        return float(sum(same)) if len(same) == len(known) else None
    gaps = [each.largest for one in known for each in one if each.what.startswith("utilities")]
    return None if not gaps or None in gaps else max(gap for gap in gaps if gap is not None)


def claimed(rows: Sequence[Row], how: str, of: Sequence[str]) -> float | None:
    """What a claim makes of its rows; None where one of them lacks the number."""
    if how == "rows":
        return float(len(rows))
    if how == "present":
        return float(sum(row[of[0]] is not None for row in rows))
    if how == "unresolved":
        intervals = [row[of[0]].interval for row in rows]
        return float(sum(each is not None and each.covers(0.0) for each in intervals))
    known = [[value for row in rows if (value := number_of(row[name])) is not None] for name in of]
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
    return sum(first) if how == "sum" else min(first) if how == "lowest" else max(first)


def paper_tables(comparison: Comparison) -> dict[str, TableResult]:
    """Every table of the paper with exactly its rows: ours, and the published value under each cell."""
    lines = {(c.cell.study, c.cell.setting, c.cell.key, c.cell.column): c for c in comparison.rows}
    labelled: dict[str, list[PaperTable]] = defaultdict(list)
    for table in paper.tables():
        labelled[table.label].append(table)
    return {label: _paper_table(found, lines) for label, found in labelled.items() if label.startswith("tab:")}


def _paper_table(published: Sequence[PaperTable], lines: Mapping[Any, Compared]) -> TableResult:
    names = list(dict.fromkeys(name for table in published for row in table.rows for name in row.cells))
    rows: list[Row] = []
    for study, row in [(table.study, row) for table in published for row in table.rows]:
        ours = {name: found for name in row.cells if (found := lines.get((study, row.setting, row.key, name)))}
        if not ours:
            continue
        first = next(iter(ours.values()))
        runs = ", ".join(dict.fromkeys(each.condition.run for each in ours.values()))
        title = {"set": first.setting, "row": TABLES[study].keys.get(row.key, row.key), "run": runs}
        here = {name: each.own_text or "—" for name, each in ours.items()}
        there = {name: cell.text for name, cell in row.cells.items()} | {n: c.cell.text for n, c in ours.items()}
        below = {"set": "", "row": "", "run": "published"} | there
        empty = dict.fromkeys(names, "")
        rows += [Row(first.condition, row.key, empty | values) for values in (title | here, below)]
    leads = (words("Condition", "{set}"), words("Row", "{row}"), words("Run", "{run}"))
    numbers = (Column(name.replace("_", " "), f"{{{name}}}") for name in names)
    caption = "Of every row the runs' numbers, and the published ones under them."
    one = published[0]
    return TableResult(one.study, one.label, one.title, caption, tuple(rows), (Panel((*leads, *numbers)),))


def figure_records(records: Records, name: str) -> Records:
    """The records of the conditions that the paper's figure shows; all of them where no run is in their setting."""
    chosen = []
    for setting in paper.figure_settings(name):
        near = [
            ((far, not updates.has("fp64_slope"), updates.condition.run), updates)
            for updates in records.updates
            if (far := verdicts.distance(updates.condition, setting)) is not None
            and updates.condition.transition == setting.transition
        ]
        chosen += [min(near, key=lambda entry: entry[0])[1]] if near else []
    return records.only(chosen) if chosen else records
