"""Work units: the pieces into which a run is cut, the same for every engine and after every interruption."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from loopscope._errors import LoopscopeError, setting

MAX_UNITS = 1_000_000
"""Work units of a run, at most: their files are numbered with six digits."""


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """A range of consecutive examples of one task; it is measured and committed as a whole."""

    index: int
    """Number of the unit in the run, from 0; it names the unit's files."""
    task: str
    split: str
    start: int
    """First `row` of the unit."""
    stop: int
    """One past its last `row`."""

    @property
    def name(self) -> str:
        """The stem of the unit's files."""
        return f"{self.index:06d}"

    @property
    def size(self) -> int:
        """How many examples the unit holds."""
        return self.stop - self.start


class TaskRows(NamedTuple):
    """A task of a run and how many of its examples are measured."""

    task: str
    split: str
    rows: int


def plan_units(tasks: Iterable[TaskRows], unit_size: int) -> tuple[WorkUnit, ...]:
    """Cut every task, in order, into ranges of `unit_size` examples, the last one shorter.

    >>> units = plan_units([TaskRows("a", "test", 3), TaskRows("b", "test", 1)], 2)
    >>> [(unit.name, unit.task, unit.start, unit.stop) for unit in units]
    [('000000', 'a', 0, 2), ('000001', 'a', 2, 3), ('000002', 'b', 0, 1)]
    """
    tasks = tuple(tasks)
    count = sum(-(-rows // unit_size) for _, _, rows in tasks)
    if count > MAX_UNITS:
        larger = f"choose a larger {setting('unit_size')}"
        raise LoopscopeError(f"a run has at most {MAX_UNITS} work units, not {count}: {larger}")
    units: list[WorkUnit] = []
    for task, split, rows in tasks:
        for start in range(0, rows, unit_size):
            units.append(WorkUnit(len(units), task, split, start, min(start + unit_size, rows)))
    return tuple(units)
