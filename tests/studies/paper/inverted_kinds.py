"""Questions of a few kinds, as many of each as published counts say, and runs of them in the paper's setting.

The path of a question is φ(α) = Aα(1 − α/p + cα²). Its gain returns to zero at r, where slope and curvature at 0
predict p: the sign of the gain is that of A where r > 1, and the other one where r < 1; that of A + Q follows from p.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from loopscope.store import StoredRun
from loopscope.store.manifest import BatchInfo
from loopscope.studies.paper import models, tables

OURO_1, OURO_2, HUGINN = "Ouro-1.4B", "Ouro-2.6B", "Huginn"
TINY = 1e-5
"""An amplitude below the paper's effect margin of 1e-4."""


class Kind(NamedTuple):
    """So many questions with a slope, a gain that returns to zero at `root`, and the root that A and Q predict."""

    count: int
    slope: float
    root: float
    predicted: float | None = None


def paths(synthetic: Any, kinds: Iterable[Kind]) -> Any:
    """Cubic paths, kind after kind."""
    listed = [kind for kind in kinds if kind.count]
    assert all(kind.count > 0 for kind in listed), listed
    count = [kind.count for kind in listed]
    slope, root = (np.repeat([kind[column] for kind in listed], count) for column in (1, 2))
    predicted = np.repeat([kind.predicted or kind.root for kind in listed], count)
    return synthetic.Paths.of(slope, -slope / predicted, slope * (root / predicted - 1) / root**2)


def published(measurement: str, model: str, name: str, transition: int | None = None, key: str = "") -> dict[str, Any]:
    """Every number that the paper prints of one row, from all of its tables, by study and column; texts as texts."""
    return {
        f"{table.study}.{column}": cell.text if cell.printed is None else float(cell.printed.decimal)
        for table in tables()
        for row in table.rows
        if (row.setting.measurement, row.setting.model, row.setting.evaluation_set) == (measurement, model, name)
        and row.setting.transition == transition
        and row.key == key
        for column, cell in row.cells.items()
    }


def of(share: float, n: int) -> int:
    """The number of questions that a printed percentage of n means."""
    return round(share * n / 100)


def whole(numbers: dict[str, Any]) -> dict[str, Any]:
    """Counts as whole numbers."""
    return {
        name: int(value) if isinstance(value, float) and value == int(value) else value
        for name, value in numbers.items()
    }


def balanced(kinds: list[Kind], progressing: int, directional: int, mean: float) -> list[Kind]:
    """Kinds with further progressing and directional updates, such that the mean gain is the published one."""
    n = sum(kind.count for kind in kinds) + progressing + directional
    gains = sum(
        k.count * k.slope * (1 - 1 / (k.predicted or k.root) + (k.root / (k.predicted or k.root) - 1) / k.root**2)
        for k in kinds
    )
    slope = 0.02
    loss = (gains + progressing * slope * (1 - 1 / 2.5) - mean * n) / (2 * directional)
    assert loss > 0
    # A directional failure of a concave path: A < 0 and Q < 0.
    return [*kinds, Kind(progressing, slope, 2.5), Kind(directional, -loss, -1.0)]


def sweep(depths: tuple[int, ...], n: int, peak: int, decline: str, size: float = 0.05) -> np.ndarray:
    """Utilities that rise to the peak, stay about there, and fall by `size` at the end of the decline."""
    end = int(decline.split("->")[1]) if "->" in decline else depths[-1] + 1
    noise = np.where(np.arange(n) % 2, 0.5, -0.5)
    noise -= noise.mean()
    columns = []
    for depth in depths:
        if depth <= peak:
            columns.append(np.full(n, -0.05 * (depths.index(peak) - depths.index(depth))))
        else:
            columns.append(np.full(n, -size) if depth >= end else noise - 1e-7)
    return np.stack(columns, axis=1) - 1.0


def range_(first: int, last: int) -> tuple[int, ...]:
    """Whole numbers, both ends included."""
    return tuple(range(first, last + 1))


class RunMaker:
    """Writes runs into a folder."""

    def __init__(self, synthetic: Any, folder: Any) -> None:
        self.synthetic, self.folder = synthetic, folder

    def run(self, model: str, tasks: list[Any], batch: int = 2, name: str = "", **changes: Any) -> StoredRun:
        """One run in the paper's setting."""
        entry = models()[model]
        huginn = entry.draws_initial_state
        described = {
            "spec": entry.name,
            "name": entry.name,
            "family": entry.family,
            "affine_readout": not huginn,
            "toy": False,
            "revision": "0123abcd",
        }
        settings = {"protocol": "paper", **({"initial_state": "paper"} if huginn else {})}
        seeds = {"initial_state": 20260904} if huginn else {}
        number = sum(1 for _ in self.folder.iterdir()) if self.folder.exists() else 0
        policy = BatchInfo(policy="paper" if batch == 2 else "questions", size=batch)
        return self.synthetic.write_run(
            self.folder / (name or f"run{number}"),
            tasks,
            model=described,
            settings=settings,
            seeds=seeds,
            batch=policy,
            **changes,
        )

    def task(self, name: str, kinds: dict[int, Any], **more: Any) -> Any:
        """A task of an evaluation set such as `gsm8k/train256`."""
        task, _, part = name.partition("/")
        split = part.rstrip("0123456789")
        subset = part if part != split else None
        kind = "solution" if task in ("math500", "gsm8k") else "options"
        return self.synthetic.Task(task, kinds, kind=kind, split=split, subset=subset, **more)
