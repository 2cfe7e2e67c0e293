"""A comparison with the paper as text: a block for each published row, headed by the two settings, then the claims."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from loopscope.studies.verdicts import Verdict

if TYPE_CHECKING:
    from loopscope.studies.comparison import Comparison, ComparisonRow

HEADS = ("column", "paper", "run", "run − paper", "covered", "verdict")
CLAIM_HEADS = ("claim", "paper", "runs", "verdict")
MARKS = {Verdict.REPRODUCES: "✓ ", Verdict.DIFFERS: "✗ ", Verdict.NOT_COMPARABLE: "· "}


def as_text(comparison: Comparison) -> str:
    """All blocks, the claims, the notes and the summary; one line where there is nothing to compare."""
    if not comparison.rows:
        return comparison.summary()
    blocks = [
        _block(list(rows))
        for _, rows in groupby(
            comparison.rows, key=lambda row: (row.table, row.study, row.setting, row.key, row.condition)
        )
    ]
    if comparison.claims:
        blocks.append(_claims(comparison.claims))
    notes = "\n".join(f"note: {note}" for note in comparison.notes)
    return "\n\n".join([*blocks, *([notes] if notes else []), comparison.summary()])


def _block(rows: list[ComparisonRow]) -> str:
    first = rows[0]
    key = f" · {first.key}" if first.key else ""
    head = f"{first.table} · {first.setting}{key}\n  beside {first.beside} (run {first.condition.run})"
    lines = [HEADS, *(_line(row) for row in rows)]
    if not first.same_setting:
        head += f"\n  {first.verdict}"
        lines = [line[:-1] for line in lines]
    return "\n".join([head, *_aligned(lines, (0, len(HEADS) - 1))])


def _line(row: ComparisonRow) -> tuple[str, ...]:
    difference = "—" if row.difference is None else f"{row.difference:+.3g}"
    verdict = MARKS[row.outcome] + row.verdict
    return (row.column, row.paper, row.own_text or "—", difference, row.covers_text or "—", verdict)


def _claims(rows: tuple[ComparisonRow, ...]) -> str:
    lines = [(row.column, row.paper, row.own_text or "—", MARKS[row.outcome] + row.verdict) for row in rows]
    left = (0, len(CLAIM_HEADS) - 1)
    return "\n".join(["what the text says of several conditions at once", *_aligned([CLAIM_HEADS, *lines], left)])


def _aligned(lines: list[tuple[str, ...]], left: tuple[int, ...]) -> list[str]:
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    return [
        "    "
        + "  ".join(
            cell.ljust(widths[index]) if index in left else cell.rjust(widths[index]) for index, cell in enumerate(line)
        ).rstrip()
        for line in lines
    ]
