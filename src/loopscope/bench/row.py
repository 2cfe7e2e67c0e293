"""One row of the benchmark: what was measured, what it is held against, what was aimed at; and rows as text.

As text a row has a line for everything that it is held against; errors stand apart, by quantity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from loopscope.bench.clock import Clock, Error, Measured, finite, over
from loopscope.bench.sizes import Sizes


@dataclass(frozen=True)
class Setting:
    """Where a row is measured and how large it is; for passes also the folders of a tokenizer and of the benchmarks."""

    device: torch.device
    sizes: Sizes
    tokenizer: str | None = None
    data_dir: str | None = None

    @property
    def clock(self) -> Clock:
        """Of the device."""
        return Clock(self.device)

    @property
    def quick(self) -> bool:
        """Whether the sizes are those of a test."""
        return not self.sizes.judged

    @property
    def on_gpu(self) -> bool:
        """Whether the device is one of CUDA's."""
        return self.device.type == "cuda"


@dataclass(frozen=True)
class Reference:
    """The same question answered another way, or the least that any answer costs.

    Attributes:
        name: a few words.
        measured: in the unit of the row.
        floor: whether this is a lower bound rather than an alternative.
    """

    name: str
    measured: Measured
    floor: bool = False

    def ratio(self, ours: Measured) -> float:
        """How many times the floor we take, or how many times less than the alternative."""
        if self.floor:
            return over(ours.value, self.measured.value)
        return over(self.measured.value, ours.value)


@dataclass(frozen=True)
class Goal:
    """What was aimed at, and what came out.

    Attributes:
        text: one line.
        bound: the number to stay under, or to reach.
        at_most: which of the two.
        measured: what came out.
        against: name of the reference that the number is a ratio to, if it is one.
        judged: False where the sizes are not those of the goal, so that nothing follows.
    """

    text: str
    bound: float
    at_most: bool
    measured: float
    against: str = ""
    judged: bool = True

    @property
    def met(self) -> bool | None:
        """Whether it was reached; None where that was not tried.

        >>> Goal("at most 1.4 times the products", 1.4, True, 1.5).met
        False
        >>> Goal("at least 8 times faster", 8, False, 9.0).met
        True
        """
        if not self.judged:
            return None
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound


@dataclass(frozen=True)
class Row:
    """One line of the benchmark.

    Attributes:
        name: by which `--rows` asks for it, or that name with a variant after a colon.
        what: one sentence.
        size: the numbers that it was measured at.
        unit: of everything measured: "s", "MiB", or "" for a ratio.
        measured: loopscope's own.
        references: what it is held against.
        goals: what was aimed at.
        figures: further numbers by name.
        errors: accuracy, quantity by quantity.
    """

    name: str
    what: str
    size: dict[str, int]
    unit: str
    measured: Measured
    references: tuple[Reference, ...] = ()
    goals: tuple[Goal, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    errors: tuple[Error, ...] = ()

    def ratio(self, name: str) -> float:
        """To the reference of that name."""
        return next(reference.ratio(self.measured) for reference in self.references if reference.name == name)

    def per_thousand(self, measured: Measured) -> float | None:
        """Of seconds, those for 1000 tokens."""
        tokens = self.size.get("tokens")
        return measured.value * 1000.0 / tokens if tokens and self.unit == "s" else None

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and text."""
        return {
            "name": self.name,
            "what": self.what,
            "size": self.size,
            "unit": self.unit,
            "measured": self._measured(self.measured),
            "references": [self._reference(one) for one in self.references],
            "goals": [asdict(goal) | {"measured": finite(goal.measured), "met": goal.met} for goal in self.goals],
            "figures": self.figures,
            "errors": [_error(error) for error in self.errors],
        }

    def _reference(self, one: Reference) -> dict[str, Any]:
        ratio = finite(one.ratio(self.measured))
        return {"name": one.name, "floor": one.floor, "ratio": ratio} | self._measured(one.measured)

    def _measured(self, measured: Measured) -> dict[str, Any]:
        each = self.per_thousand(measured)
        return asdict(measured) | ({} if each is None else {"per_1000_tokens": each})


def at_most(text: str, bound: float, measured: float, *, judged: bool, against: str = "") -> Goal:
    """A goal to stay under."""
    return Goal(text, bound, True, measured, against, judged)


def at_least(text: str, bound: float, measured: float, *, judged: bool, against: str = "") -> Goal:
    """A goal to reach."""
    return Goal(text, bound, False, measured, against, judged)


def _error(error: Error) -> dict[str, Any]:
    ratios = {"rms_ratio": error.rms_ratio, "low": error.low, "high": error.high, "max_ratio": error.max_ratio}
    return asdict(error) | {name: finite(value) for name, value in ratios.items()}


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
