"""Measured columns on their way to the store: by name, one entry a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

Columns: TypeAlias = dict[str, Any]
"""NumPy arrays (masked where null) or lists, all of one length."""


def array(values: Tensor) -> np.ndarray[Any, Any]:
    """A result on the host."""
    return values.detach().cpu().numpy()


def stacked(parts: Sequence[Columns]) -> Columns:
    """The rows of several parts, one after the other; a column that a part lacks is null there.

    >>> stacked([{"a": [1], "b": [2]}, {"a": [3]}])
    {'a': [1, 3], 'b': [2, None]}
    """
    names = list(dict.fromkeys(name for part in parts for name in part))
    return {name: _joined([part.get(name, [None] * length(part)) for part in parts]) for name in names}


def length(columns: Columns) -> int:
    """How many rows the columns hold."""
    return len(next(iter(columns.values()))) if columns else 0


def _joined(parts: list[Any]) -> Any:
    if all(isinstance(part, np.ndarray) for part in parts):
        masked = any(isinstance(part, np.ma.MaskedArray) for part in parts)
        join: Any = np.ma.concatenate if masked else np.concatenate
        return join(parts)
    return [value for part in parts for value in (part.tolist() if isinstance(part, np.ndarray) else part)]
