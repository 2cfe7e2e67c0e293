"""The finished rows as text: a line for everything that a row is held against, errors under the rows that have any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopscope.bench.row import Goal, Row

HEADS = ("row", "measured", "held against", "reference", "ratio", "goal", "met")


def table(rows: Sequence[Row]) -> str:
    """Plain columns."""
    lines = [HEADS, *(line for row in rows for line in _lines(row))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADS))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([text[0], "  ".join("-" * width for width in widths), *text[1:]])


def error_table(row: Row) -> str:
    """Errors of one row."""
    width = max(len(error.quantity) for error in row.errors)
    heads = ("RMS size", "RMS error", "plain", "ratio", "95%", "", "largest", "plain", "ratio")
    lines = [f"  {'quantity':<{width}}" + "".join(f"  {head:>8}" for head in heads)]
    for error in row.errors:
        ratio = f"{error.rms_ratio:8.3g}  {error.low:8.3g}  {error.high:8.3g}"
        rms = f"{error.ours_rms:8.2e}  {error.plain_rms:8.2e}  {ratio}"
        largest = f"{error.ours_max:8.2e}  {error.plain_max:8.2e}  {error.max_ratio:8.3g}"
        lines.append(f"  {error.quantity:<{width}}  {error.size:8.2e}  {rms}  {largest}")
    return "\n".join([f"{row.name}: {row.what} ({_sizes(row)})", *lines])


def amount(value: float, unit: str) -> str:
    """A number in a unit people read.

    >>> amount(0.00305, "s"), amount(12.0, "s"), amount(17.25, "MiB"), amount(0.98765, "")
    ('3.05 ms', '12 s', '17.2 MiB', '0.988')
    """
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if value < 1.0 else f"{value:.3g} s"
    if unit == "MiB":
        return f"{value:,.1f} MiB"
    return f"{value:.3g}"


def beside(value: float, bound: float) -> str:
    """A number with three digits, or as many as tell it from the bound that it is judged by.

    >>> beside(1.3893, 1.4), beside(1.40161, 1.4), beside(1.40001, 1.4), beside(1.4, 1.4)
    ('1.39', '1.402', '1.40001', '1.4')
    """
    texts = (f"{value:.{digits}g}" for digits in range(3, 18))
    return next((text for text in texts if float(text) != bound), f"{value:.3g}")


def ratio_text(row: Row, name: str, goal: Goal | None = None) -> str:
    """`1.38 × the floor` or `154 × faster`."""
    floor = next(reference.floor for reference in row.references if reference.name == name)
    less = "faster" if row.unit == "s" else "less"
    ratio = row.ratio(name)
    return f"{f'{ratio:.3g}' if goal is None else beside(ratio, goal.bound)} × {'the floor' if floor else less}"


def _lines(row: Row) -> Iterator[tuple[str, ...]]:
    start = (row.name, amount(row.measured.value, row.unit))
    by_reference = {goal.against: goal for goal in row.goals if goal.against}
    for reference in row.references:
        value = amount(reference.measured.value, row.unit)
        goal = by_reference.get(reference.name)
        yield (*start, reference.name, value, ratio_text(row, reference.name, goal), *_goal(goal))
        start = ("", "")
    for goal in row.goals:
        if not goal.against:
            yield (*start, goal.text, "", beside(goal.measured, goal.bound), *_goal(goal))
            start = ("", "")
    if start[0]:
        yield (*start, "", "", "", "", "")


def _goal(goal: Goal | None) -> tuple[str, str]:
    if goal is None:
        return "", ""
    return f"{'≤' if goal.at_most else '≥'} {goal.bound:g}", {True: "yes", False: "NO", None: "not judged"}[goal.met]


def _sizes(row: Row) -> str:
    return ", ".join(f"{value:,} {name}" for name, value in row.size.items())
