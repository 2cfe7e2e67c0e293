"""`loopscope compare`: every published cell with a counterpart in the runs, the difference and a verdict.

In the terminal there is one block per published row, headed by the two settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from loopscope.stats import Bootstrap, Estimate, Interval
from loopscope.studies.paper import PaperCell, PaperRow, tables
from loopscope.studies.paper.published_numbers import cells, models
from loopscope.studies.records import Records
from loopscope.studies.registry import TABLES
from loopscope.studies.result import COUNT, Column, Panel, Row, TableResult, Value, label
from loopscope.studies.tables.depth_coverage import DepthRow
from loopscope.studies.usable_conditions import notes_on
from loopscope.studies.verdicts import (
    Verdict,
    absent,
    caveat,
    distance,
    in_paper,
    setting_differences,
    verdict_of,
)

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl


@dataclass(frozen=True)
class ComparisonRow(Row):
    """One published cell and the run's own number; the key is the row within the condition."""

    table: str
    """LaTeX label of the paper's table or section."""
    study: str
    setting: str
    """The paper's condition."""
    column: str
    paper: str
    """As printed."""
    paper_value: float | str | None
    """In natural units."""
    own: Estimate | float | int | str | None
    own_text: str
    """In the paper's unit and digits."""
    difference: float | None
    """Run minus paper, natural units."""
    covers: bool | None
    """Whether the run's interval covers the published number; None without an interval."""
    same_setting: bool
    verdict: str
    """One line."""
    outcome: Verdict

    @property
    def condition_title(self) -> str:
        """The run's condition in words."""
        return str(self.condition)

    @property
    def covers_text(self) -> str:
        """Yes, no, or nothing to say."""
        return "" if self.covers is None else "yes" if self.covers else "no"


@dataclass(frozen=True)
class Comparison:
    """All lines, and how they fall out."""

    rows: tuple[ComparisonRow, ...]
    uncompared: int
    """Published cells with nothing beside them."""
    notes: tuple[str, ...]

    def counts(self) -> Counter[Verdict]:
        """How many cells have each verdict."""
        return Counter(row.outcome for row in self.rows)

    def summary(self) -> str:
        """The result in one or two sentences."""
        if not self.rows and self.notes:
            return f"nothing to compare: {self.notes[-1]}."
        counts = self.counts()
        total = len(self.rows) + self.uncompared
        same = [row for row in self.rows if row.same_setting]
        parts = [f"{len(self.rows)} of {total} published cells have a counterpart"]
        if same:
            parts.append(
                f"{len(same)} in the paper's own setting: {counts[Verdict.DIGITS]} to the printed digits, "
                f"{counts[Verdict.COVERED]} within the run's interval, "
                f"{counts[Verdict.OUTSIDE] + counts[Verdict.DIFFERS]} not"
            )
        if len(same) < len(self.rows):
            others = len(self.rows) - len(same)
            parts.append(f"{others} beside runs of another setting, which reproduce nothing and refute nothing")
        return "; ".join(parts) + "."

    def to_text(self) -> str:
        """Grouped by table and setting, for a terminal."""
        return _text(self)

    def to_polars(self) -> pl.DataFrame:
        """One row per compared cell, full precision."""
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
            rows=self.rows,
            panels=(Panel(COLUMNS),),
            notes=(*self.notes, self.summary().rstrip(".")) if self.rows else (self.summary().rstrip("."),),
        )


COLUMNS = (
    label("table", "Table"),
    label("setting", "Paper's setting"),
    label("key", "Row"),
    label("column", "Column"),
    Column(("paper",), "Paper", (COUNT,)),
    Column(("own_text",), "Run", (COUNT,)),
    Column(("covers_text",), "Covered", (COUNT,)),
    label("condition_title", "Run's condition"),
    label("verdict", "Verdict"),
)


def compare(
    records: Records,
    bootstrap: Bootstrap | None = None,
    study: str | None = None,
    computed: Mapping[str, TableResult[Row]] | None = None,
) -> Comparison:
    """Join every published cell to the nearest condition of the runs.

    For each row of the paper the nearest row of the same study, model and task is taken: published weights first, then
    the same split, subset, transition, size and arithmetic; the first run given wins a tie. Models and tasks that the
    paper does not have are named in one note.

    Args:
        records: the runs.
        bootstrap: resamples, seed and level; the paper's by default.
        study: only the cells of this table study.
        computed: tables of the same records and bootstrap that there are already, by study; the others are computed.
    """
    conditions = [condition for _, condition in records.conditions()]
    left_out = absent(conditions)
    notes = (left_out,) if left_out else ()
    if not any(map(in_paper, conditions)):
        return Comparison((), len(cells(study)), notes)
    known = dict(computed or {})
    lines: list[ComparisonRow] = []
    for table in tables():
        if study not in (None, table.study):
            continue
        if table.study not in known:
            known[table.study] = TABLES[table.study].table(records, bootstrap)
        for paper_row in table.rows:
            own = _nearest(paper_row, known[table.study].rows)
            if own is not None:
                lines += _lines(paper_row, own)
    rows = tuple(lines)
    return Comparison(rows, len(cells(study)) - len(rows), notes_on(row.condition for row in rows) + notes)


def _nearest(paper_row: PaperRow, rows: Iterable[Row]) -> Row | None:
    reachable = [
        (far, row)
        for row in rows
        if row.key == paper_row.key and (far := distance(row.condition, paper_row.setting)) is not None
    ]
    return min(reachable, key=lambda entry: entry[0])[1] if reachable else None


def _lines(paper_row: PaperRow, own: Row) -> Iterator[ComparisonRow]:
    differences = setting_differences(own.condition, paper_row.setting)
    if isinstance(own, DepthRow) and own.depths != ",".join(map(str, models()[paper_row.setting.model].depths)):
        differences += ("other depths",)
    for column, cell in paper_row.cells.items():
        value = own.value(column)
        number, interval = _number(value)
        covers = None if interval is None or cell.value is None else _covers(interval, cell)
        outcome, verdict = verdict_of(cell, value, number, covers, differences, caveat(paper_row.setting))
        yield ComparisonRow(
            own.condition,
            paper_row.key,
            table=cell.label,
            study=cell.study,
            setting=_setting_title(paper_row),
            column=column,
            paper=cell.text,
            paper_value=cell.text if cell.value is None else cell.value,
            own=value,
            own_text=_own_text(cell, value, number, interval),
            difference=None if number is None or cell.value is None else number - cell.value,
            covers=covers,
            same_setting=not differences,
            verdict=verdict,
            outcome=outcome,
        )


def _setting_title(paper_row: PaperRow) -> str:
    setting = paper_row.setting
    update = "" if setting.transition is None else f" {setting.transition}→{setting.transition + 1}"
    return f"{setting.model} {setting.evaluation_set}{update}"


def _number(value: Value) -> tuple[float | None, Interval | None]:
    if isinstance(value, Estimate):
        return value.value, value.interval
    return (None if value is None or isinstance(value, str) else float(value)), None


def _covers(interval: Interval, cell: PaperCell) -> bool:
    """Whether any number that rounds to the printed one lies in the interval."""
    value = cell.value or 0.0
    return interval.low <= value + cell.half_unit and value - cell.half_unit <= interval.high


def _own_text(cell: PaperCell, value: Value, number: float | None, interval: Interval | None) -> str:
    """The run's number in the unit and with the digits of the printed one."""
    if isinstance(value, str):
        return value
    if number is None:
        return ""
    text = _digits(cell, number)
    return text if interval is None else f"{text} [{_digits(cell, interval.low)}, {_digits(cell, interval.high)}]"


def _digits(cell: PaperCell, number: float) -> str:
    printed = cell.printed.text if cell.printed is not None else "0"
    mantissa, exponent, _ = printed.partition("e")
    decimals = len(mantissa.partition(".")[2])
    if exponent:
        return f"{number / cell.unit:.{decimals}e}"
    sign = "+" if mantissa.startswith("+") else ""
    return f"{number / cell.unit:{sign}.{decimals}f}"


HEADS = ("column", "paper", "run", "run − paper", "covered", "verdict")


def _text(comparison: Comparison) -> str:
    """All blocks, the notes and the summary; one line where there is nothing to compare."""
    if not comparison.rows:
        return comparison.summary()
    blocks = [
        _block(list(rows))
        for _, rows in groupby(
            comparison.rows, key=lambda row: (row.table, row.study, row.setting, row.key, row.condition)
        )
    ]
    notes = "\n".join(f"note: {note}" for note in comparison.notes)
    return "\n\n".join([*blocks, *([notes] if notes else []), comparison.summary()])


def _block(rows: list[ComparisonRow]) -> str:
    first = rows[0]
    key = f" · {first.key}" if first.key else ""
    head = f"{first.table} · {first.setting}{key}\n  beside {first.condition_title} (run {first.condition.run})"
    lines = [HEADS, *(_line(row) for row in rows)]
    if not first.same_setting:
        head += f"\n  {first.verdict}"
        lines = [line[:-1] for line in lines]
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    body = ["    " + "  ".join(_place(cell, widths[i], i) for i, cell in enumerate(line)).rstrip() for line in lines]
    return "\n".join([head, *body])


def _place(cell: str, width: int, index: int) -> str:
    return cell.ljust(width) if index in (0, len(HEADS) - 1) else cell.rjust(width)


def _line(row: ComparisonRow) -> tuple[str, ...]:
    difference = "—" if row.difference is None else f"{row.difference:+.3g}"
    mark = "✓ " if row.outcome in (Verdict.DIGITS, Verdict.COVERED) else "· "
    return (row.column, row.paper, row.own_text or "—", difference, row.covers_text or "—", mark + row.verdict)
