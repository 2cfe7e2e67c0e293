"""Two tables of the same rows, compared column by column: what is equal to rounding, and what is not."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc  # type: ignore[import-untyped]

from loopscope.store.columns import Column, Table
from loopscope.store.manifest import Manifest

_CORE = frozenset(
    {
        "utility", "option_scores", "option_logliks", "utility_before", "utility_after", "gain", "slope", "quadratic",
        "grid_gain", "fp64_slope", "fp64_quadratic", "fp64_gain", "fp64_quarter_gain",
    }
)  # fmt: skip
"""Numbers that follow smoothly from the states; a bracket or a class may jump by a rounding error."""
_JUMPING = frozenset(
    {
        "batch", "batch_width", "outcome", "chosen_option", "scalar_check_passed", "fp64_optimum_kind",
        "fp64_evaluations", "gate_continuing", "exit_depth", "exit_depth_fp64", "continues",
    }
)  # fmt: skip
"""What is not a real number and yet may be another one on another device or in another layout."""
_ROUNDING = {"float64": 1e-9, "float32": 1e-4}
"""How far apart two devices or layouts may be, relative to 1 + |value|, by the coarser of the two arithmetics."""
_COARSE = 5e-2


@dataclass(frozen=True)
class Tolerance:
    """How far apart two measurements may be.

    Attributes:
        same: within this, relative to 1 + |value|, where everything is as it was.
        other: within this where device, code, libraries or layout are not.
        circumstances: whether everything is as it was.
    """

    same: float
    other: float
    circumstances: bool

    @classmethod
    def of(cls, manifest: Manifest, *, same_circumstances: bool) -> Tolerance:
        """What the arithmetic of a run lets one ask for."""
        arithmetic = {manifest.dtypes.states, manifest.dtypes.readout}
        rough = _COARSE if arithmetic & {"bfloat16", "float16"} else max(_ROUNDING[name] for name in arithmetic)
        # Even then another number of threads may add up in another order.
        return cls(min(rough, 1e-6), rough, same_circumstances)

    def relaxed(self) -> Tolerance:
        """The same for another batch layout."""
        return dataclasses.replace(self, circumstances=False)

    def applies_to(self, column: Column) -> bool:
        """Whether a column can be compared at all."""
        if self.circumstances:
            return True
        return column.name in _CORE if column.type.is_float else column.name not in _JUMPING


def compare(table: Table, stored: Any, measured: Any, tolerance: Tolerance) -> list[str]:
    """One line for each column whose cells do not agree; both tables stand in key order."""
    if len(stored) != len(measured):
        return [f"row: {len(measured)} rows instead of {len(stored)}"]
    found = []
    for column in table.columns:
        if not tolerance.applies_to(column):
            continue
        line = _difference(column, stored.column(column.name), measured.column(column.name), tolerance)
        if line is not None:
            found.append(f"{column.name}: {line}")
    return found


def _difference(column: Column, stored: Any, measured: Any, tolerance: Tolerance) -> str | None:
    if stored.equals(measured):
        return None
    if not column.type.is_float:
        old, new = stored.to_pylist(), measured.to_pylist()
        first = next(index for index, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1])
        return f"{new[first]!r} instead of {old[first]!r}"
    if not pc.is_null(stored).equals(pc.is_null(measured)):
        return "other cells are empty"
    old, new = _flat(column, stored), _flat(column, measured)
    if old.shape != new.shape:
        return "lists of another length"
    allowed = tolerance.same if tolerance.circumstances else tolerance.other
    gap = np.abs(new - old) / (1.0 + np.abs(old))
    worst = int(gap.argmax())
    return None if gap[worst] <= allowed else f"{new[worst]!r} instead of {old[worst]!r}"


def _flat(column: Column, values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = values.drop_null()
    if column.type.is_list:
        values = pc.list_flatten(values)
    flat: np.ndarray[Any, np.dtype[np.float64]] = values.to_numpy().astype(np.float64)
    return flat
