"""Whether a run's condition is the setting of a published number, and what differs if it is not.

One line on a run's number beside a published one.

Words of agreement and disagreement belong to the same setting alone. Beside any other run stands what differs.

`loopscope compare`: every published cell with a counterpart in the runs, the difference and a verdict.

A comparison for the terminal: one block per published row, headed by the two settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from loopscope.stats import Bootstrap, Estimate, Interval
from loopscope.studies.conditions import Condition, Weights, bare_name, conditions_of
from loopscope.studies.paper import PaperCell, PaperRow, Setting, tables
from loopscope.studies.paper.published import cells, model_names, models, templates
from loopscope.studies.records import Records
from loopscope.studies.registry import TABLES
from loopscope.studies.result import COUNT, Column, Panel, Row, TableResult, Value, label
from loopscope.studies.selection import notes_on
from loopscope.studies.tables.depth_coverage import DepthRow

MOST_NAMED = 4
"""Conditions that the line about what the paper lacks names; the others are counted."""
EXIT_THRESHOLD = 1.0
"""The CDF threshold of the exit gate in the paper, which is that of the published checkpoints."""


def in_paper(condition: Condition) -> bool:
    """Whether the paper has this model and task at all; weights and questions may be others."""
    return _paper_model(condition) is not None and condition.task in templates()


def absent(conditions: Iterable[Condition]) -> str:
    """One line on conditions that the paper does not have; nothing where there are none."""
    names = list(dict.fromkeys(f"{c.model_title} on {c.set_title}" for c in conditions if not in_paper(c)))
    if not names:
        return ""
    listed = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
    models = ", ".join(model_names().values())
    return f"not in the paper, so not compared: {listed} (its models are {models}; its tasks {', '.join(templates())})"


def _paper_model(condition: Condition) -> str | None:
    return None if condition.weights in (Weights.RANDOM, Weights.TOY) else model_names().get(bare_name(condition.model))


def setting_differences(condition: Condition, setting: Setting) -> tuple[str, ...]:
    """What keeps a run from being the paper's setting, in words; empty for the same setting.

    Only a checkpoint of the same name from the hub, the same examples, transition and arithmetic are the same setting.
    Batch composition and hardware are not compared: the paper's own measurements differ in them.
    """
    found = [*_model_differences(condition, setting)]
    if condition.task != setting.task:
        found.append(f"task {condition.task}")
    elif condition.split != setting.split:
        found.append(f"split {condition.split}")
    elif condition.subset != setting.subset:
        found.append(f"subset {condition.subset or 'none'}")
    if condition.n != setting.n:
        found.append(f"N={condition.n}")
    if setting.transition is not None and condition.transition != setting.transition:
        found.append(f"transition {condition.update}")
    if condition.states != setting.states:
        found.append(f"{condition.states} states")
    # Numbers of the FP64 analysis do not depend on the readout of the pass.
    if setting.readout == "float32" and condition.readout != "float32":
        found.append(f"{condition.readout} readout")
    if condition.task == setting.task and condition.template_sha256 != templates()[setting.task]:
        found.append("another template")
    if condition.exit_threshold not in (None, EXIT_THRESHOLD):
        found.append(f"exit threshold {condition.exit_threshold:g}")
    return tuple(found)


def _model_differences(condition: Condition, setting: Setting) -> list[str]:
    if condition.weights is Weights.RANDOM:
        return ["random weights"]
    if condition.weights is Weights.TOY:
        return [f"toy model {condition.model}"]
    if model_names().get(bare_name(condition.model)) != setting.model:
        return [f"model {condition.model}"]
    if condition.weights is not Weights.PUBLISHED:
        return ["weights not fetched from the hub"]
    return []


def caveat(setting: Setting) -> str:
    """What cannot be checked even in the same setting."""
    return f"rows of {setting.subset} are not published" if setting.subset else ""


def distance(condition: Condition, setting: Setting) -> tuple[bool, ...] | None:
    """How far a condition is from a setting, most important difference first; None where they cannot be compared.

    Another model or another task says nothing of a published number.
    """
    here = (_paper_model(condition), condition.task, condition.kind)
    if here != (setting.model, setting.task, setting.kind):
        return None
    return (
        condition.weights is not Weights.PUBLISHED,
        condition.split != setting.split,
        condition.subset != setting.subset,
        setting.transition is not None and condition.transition != setting.transition,
        condition.n != setting.n,
        condition.states != setting.states,
    )


class Verdict(StrEnum):
    """How a comparison falls out."""

    DIGITS = "digits"
    """Same setting, equal to the printed digits."""
    COVERED = "covered"
    """Same setting, the run's interval covers the published number."""
    OUTSIDE = "outside"
    """Same setting, the published number lies outside the run's interval."""
    DIFFERS = "differs"
    """Same setting, another number or text, and no interval to judge by."""
    UNDEFINED = "undefined"
    """The run defines no such number: an empty population, a lower level of measurement."""
    OTHER = "other"
    """Another setting."""


def verdict_of(
    cell: PaperCell,
    value: Value,
    number: float | None,
    covers: bool | None,
    differences: tuple[str, ...],
    caveat: str,
) -> tuple[Verdict, str]:
    """The verdict and its sentence."""
    if differences:
        return Verdict.OTHER, f"not comparable because of {', '.join(differences)}: shown beside it only"
    outcome, sentence = _same_setting(cell, value, number, covers)
    return outcome, f"{sentence}; {caveat}" if caveat else sentence


def _same_setting(cell: PaperCell, value: Value, number: float | None, covers: bool | None) -> tuple[Verdict, str]:
    if cell.printed is None:
        same = (value or "---") == cell.text.replace("->", "→")
        return (Verdict.DIGITS, "reproduced") if same else (Verdict.DIFFERS, f"differs: {value or '—'}")
    if number is None:
        return Verdict.UNDEFINED, "not defined in this run"
    if cell.printed.agrees(number / cell.unit):
        return Verdict.DIGITS, "reproduced to the printed digits"
    if covers:
        return Verdict.COVERED, "consistent: the run's interval covers it"
    printed = float(cell.printed.decimal)
    relative = f" ({(number / cell.unit - printed) / abs(printed):+.1%})" if printed else ""
    off = f"{number / cell.unit - printed:+.3g}{relative}"
    if covers is None:
        return Verdict.DIFFERS, f"differs by {off}"
    return Verdict.OUTSIDE, f"not reproduced: outside the run's interval, {off}"


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
        return render(self)

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
    conditions = [condition for run in records.runs for condition in conditions_of(run)]
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


def render(comparison: Comparison) -> str:
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
