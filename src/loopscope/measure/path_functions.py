"""φ and φ' of single questions at scales of their own, as the searches of `loopscope.path` ask for them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

from loopscope.measure.columns import array
from loopscope.readout.path import UtilityPath

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Indices: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]


class PathFunctions:
    """φ and φ' of chosen questions; what is known of a path is not evaluated again.

    A search asks for φ and φ' at the same places one after the other, and at many nodes of the partition.
    """

    def __init__(self, path: UtilityPath, nodes_K: Floats, value_BK: Floats, slope_BK: Floats) -> None:
        self._path = path
        self._known: dict[tuple[int, float], tuple[float, float]] = {}
        scales = nodes_K.tolist()
        for row, (values, slopes) in enumerate(zip(value_BK.tolist(), slope_BK.tolist(), strict=True)):
            places = ((row, scale) for scale in scales)
            self._known.update(zip(places, zip(values, slopes, strict=True), strict=True))

    def value(self, alpha: Floats, rows: Indices) -> Floats:
        """φ of question rows[k] at scale alpha[k]."""
        return self._at(alpha, rows, 0)

    def derivative(self, alpha: Floats, rows: Indices) -> Floats:
        """φ' of question rows[k] at scale alpha[k]."""
        return self._at(alpha, rows, 1)

    def _at(self, alpha: Floats, rows: Indices, order: int) -> Floats:
        asked = list(zip(rows.tolist(), alpha.tolist(), strict=True))
        missing = [pair for pair in dict.fromkeys(asked) if pair not in self._known]
        while missing:
            # A question may be asked for at several scales; each turn takes one of every question.
            turn = dict(reversed(missing))
            scales = torch.zeros(self._path.examples, dtype=torch.float64)
            scales[list(turn)] = torch.tensor(list(turn.values()), dtype=torch.float64)
            value, slope = array(self._path.at(scales, 1).stack).tolist()
            self._known.update(((row, scale), (value[row], slope[row])) for row, scale in turn.items())
            missing = [pair for pair in missing if pair not in self._known]
        return np.array([self._known[pair][order] for pair in asked], dtype=np.float64)
