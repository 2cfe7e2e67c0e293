"""`loopscope compare`: every published number with a counterpart in the runs, the difference and a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loopscope.stats import Bootstrap, Estimate, Interval
from loopscope.studies.conditions import Condition
from loopscope.studies.joined_rows import ClaimVerdict, Joined, claim_verdict, join, number_of
from loopscope.studies.paper import PaperCell, PaperRow, Printed, claims, tables
from loopscope.studies.paper.published_numbers import cells
from loopscope.studies.records import Records
from loopscope.studies.registry import TABLES
from loopscope.studies.result import COUNT, Column, Panel, Row, TableResult, Value, label
from loopscope.studies.usable_conditions import notes_on
from loopscope.studies.verdicts import Verdict, absent, in_paper, judge, not_comparable

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl


@dataclass(frozen=True)
class ComparisonRow(Row):
    """One published number and the run's own; the key is the row within the condition."""

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
    own: Estimate | float | int | str | None
    own_text: str
    """In the paper's unit and digits."""
    difference: float | None
    """Run minus paper, natural units."""
    covers: bool | None
    """Whether the run's interval covers the published number; None without an interval. It decides nothing."""
    same_setting: bool
    verdict: str
    """One line: `reproduces`, `differs by …` or `not comparable because …`."""
    outcome: Verdict
    caveat: str
    """What cannot be checked even in the same setting."""
    beside: str
    """The run's condition in words, of claims how many there are."""

    @property
    def covers_text(self) -> str:
        """Yes, no, or nothing to say."""
        return "" if self.covers is None else "yes" if self.covers else "no"


@dataclass(frozen=True)
class Comparison:
    """All lines, and how they fall out."""

    rows: tuple[ComparisonRow, ...]
    """Cells of tables and numbers of the text, one by one."""
    claims: tuple[ComparisonRow, ...]
    """What the text says of several conditions at once."""
    uncompared: int
    """Published cells with nothing beside them."""
    notes: tuple[str, ...]

    def counts(self) -> Counter[Verdict]:
        """How many cells have each verdict."""
        return Counter(row.outcome for row in self.rows)

    def summary(self) -> str:
        """The result in one or two sentences."""
        if not self.rows and self.notes:
            return f"nothing to compare: {self.notes[-1]}; `loopscope diff A B` compares two of your own runs."
        parts = [f"{len(self.rows)} of {len(self.rows) + self.uncompared} published cells have a counterpart"]
        parts[0] += f": {_counted(self.rows)}"
        if self.claims:
            parts.append(f"of {len(self.claims)} claims over several conditions {_counted(self.claims)}")
        return "; ".join(parts) + "."

    def to_text(self) -> str:
        """Grouped by table and setting, for a terminal."""
        from loopscope.studies.render.comparison import as_text

        return as_text(self)

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

    def table(self) -> TableResult[ComparisonRow]:
        """The lines as a table, for any renderer."""
        return TableResult(
            study="compare",
            label="tab:compare",
            title="Published numbers beside the run's own",
            caption=self.summary(),
            rows=self.rows + self.claims,
            panels=(Panel(COLUMNS),),
            notes=(*self.notes, self.summary().rstrip(".")) if self.rows else (self.summary().rstrip("."),),
        )


def _counted(rows: tuple[ComparisonRow, ...]) -> str:
    """How many rows have each verdict, in words."""
    counts = Counter(row.outcome for row in rows)
    words = {Verdict.REPRODUCES: ("reproduces", "reproduce"), Verdict.DIFFERS: ("differs", "differ")}
    words[Verdict.NOT_COMPARABLE] = ("is not comparable", "are not comparable")
    return ", ".join(f"{counts[each]} {words[each][counts[each] != 1]}" for each in Verdict)


COLUMNS = (
    label("table", "Table"),
    label("setting", "Paper's setting"),
    label("key", "Row"),
    label("column", "Column"),
    Column(("paper",), "Paper", (COUNT,)),
    Column(("own_text",), "Run", (COUNT,)),
    Column(("covers_text",), "Covered", (COUNT,)),
    label("beside", "Run's condition"),
    label("verdict", "Verdict"),
)


def compare(
    records: Records,
    bootstrap: Bootstrap | None = None,
    study: str | None = None,
    computed: Mapping[str, TableResult[Row]] | None = None,
) -> Comparison:
    """Join every published number to the nearest condition of the runs.

    For each row of the paper the nearest row of the same study, model and task is taken: published weights first, then
    the same split, subset, transition, size and protocol; the first run given wins a tie. Models and tasks that the
    paper does not have are named in one note.

    Args:
        records: the runs.
        bootstrap: resamples, seed and level; the paper's by default.
        study: only the numbers of this table study.
        computed: tables of the same bootstrap that there are already, by study, of all these records or of those that
            the study is meant for; the others are computed.
    """
    conditions = [condition for _, condition in records.conditions()]
    left_out = absent(conditions)
    notes = (left_out,) if left_out else ()
    if not any(map(in_paper, conditions)):
        return Comparison((), (), len(cells(study)), notes)
    known = dict(computed or {})
    for name in {table.study for table in tables() if study in (None, table.study)} - known.keys():
        known[name] = TABLES[name].table(records, bootstrap)
    lines: list[ComparisonRow] = []
    for table in (table for table in tables() if study in (None, table.study)):
        for paper_row in table.rows:
            own = join(paper_row.setting, paper_row.key, known[table.study].rows)
            if own is not None:
                lines += _lines(paper_row, own)
    rows = tuple(lines)
    somewhere = next(condition for condition in conditions if in_paper(condition))
    stated = tuple(
        _claim_line(claim_verdict(claim, known), somewhere)
        for claim in claims().values()
        if study in (None, claim.study)
    )
    noted = notes_on(row.condition for row in rows) + _caveats(rows) + notes
    return Comparison(rows, stated, len(cells(study)) - len(rows), noted)


def _caveats(rows: tuple[ComparisonRow, ...]) -> tuple[str, ...]:
    """What cannot be checked of the conditions that got a verdict."""
    return tuple(dict.fromkeys(f"{row.setting}: {row.caveat}" for row in rows if row.same_setting and row.caveat))


def _lines(paper_row: PaperRow, own: Joined) -> Iterator[ComparisonRow]:
    condition = own.row.condition
    for column, cell in paper_row.cells.items():
        value = None if cell.without else own.row.value(column)
        number, interval = number_of(value)
        outcome, verdict = _judged(cell, own, value, number)
        yield ComparisonRow(
            condition,
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
            own_text=_own_text(cell, value, number, interval),
            difference=None if number is None or cell.value is None else number - cell.value,
            covers=None if interval is None or cell.value is None else _covers(interval, cell),
            same_setting=not own.differences,
            verdict=verdict,
            outcome=outcome,
            caveat=paper_row.setting.caveat,
            beside=str(condition),
        )


def _judged(cell: PaperCell, own: Joined, value: Value, number: float | None) -> tuple[Verdict, str]:
    if own.differences:
        return not_comparable(own.differences)
    if cell.without:
        return not_comparable([cell.without])
    return judge(cell.quantity, cell.printed, cell.text, cell.unit, value, number, own.row.condition.states)


def _claim_line(found: ClaimVerdict, somewhere: Condition) -> ComparisonRow:
    claim, printed = found.claim, found.claim.number
    paper = float(printed.decimal) * claim.unit
    return ComparisonRow(
        found.conditions[0] if found.conditions else somewhere,
        "",
        table=claim.label,
        study=claim.study,
        measurement="",
        setting=found.setting,
        column=claim.says,
        paper=claim.printed,
        paper_value=paper,
        quantity=claim.quantity.name,
        own=found.value,
        own_text="" if found.value is None else _digits(printed, found.value / claim.unit),
        difference=None if found.value is None else found.value - paper,
        covers=None,
        same_setting=found.value is not None,
        verdict=found.verdict,
        outcome=found.outcome,
        caveat="",
        beside=f"{len(found.conditions)} of {len(claim.rows)} rows",
    )


def _covers(interval: Interval, cell: PaperCell) -> bool:
    """Whether any number that rounds to the printed one lies in the interval."""
    value = cell.value or 0.0
    return interval.low <= value + cell.half_unit and value - cell.half_unit <= interval.high


def _own_text(cell: PaperCell, value: Value, number: float | None, interval: Interval | None) -> str:
    """The run's number in the unit and with the digits of the printed one."""
    if isinstance(value, str):
        return value
    if number is None or cell.printed is None:
        return ""
    ends = () if interval is None else (interval.low, interval.high)
    text, *range_ = (_digits(cell.printed, each / cell.unit) for each in (number, *ends))
    return f"{text} [{', '.join(range_)}]" if range_ else text


def _digits(printed: Printed, number: float) -> str:
    mantissa, exponent, _ = printed.text.partition("e")
    decimals = len(mantissa.partition(".")[2])
    if exponent:
        return f"{number:.{decimals}e}"
    sign = "+" if mantissa.startswith("+") else ""
    return f"{number:{sign}.{decimals}f}"
