"""A comparison for the terminal: one block per published row, headed by the two settings."""

from itertools import groupby
from typing import TYPE_CHECKING

from loopscope.studies.comparison.verdicts import Verdict

if TYPE_CHECKING:
    from loopscope.studies.comparison.compare import Comparison, ComparisonRow

HEADS = ("column", "paper", "run", "run − paper", "covered", "verdict")


def render(comparison: "Comparison") -> str:
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


def _block(rows: "list[ComparisonRow]") -> str:
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


def _line(row: "ComparisonRow") -> tuple[str, ...]:
    difference = "—" if row.difference is None else f"{row.difference:+.3g}"
    mark = "✓ " if row.outcome in (Verdict.DIGITS, Verdict.COVERED) else "· "
    return (row.column, row.paper, row.own_text or "—", difference, row.covers_text or "—", mark + row.verdict)
