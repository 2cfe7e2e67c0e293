"""U at the depths of a trip, each read once: as an update's survey says it, or by itself.

Shapes: N reference tokens, R sequences, S positions, D hidden width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.measure.affine import Reader, predicting, read_two
from loopscope.measure.layout import Layout
from loopscope.measure.utility import Reading, read
from loopscope.models.protocol import LoopedModel


class _Waiting(NamedTuple):
    depth: int
    state_ND: Tensor


class Readings:
    """Readings by depth, in the order in which they become known.

    With a `reader`, depths that no update says anything about are read two at a time: the head passes by once.
    """

    def __init__(self, model: LoopedModel, layout: Layout, dtype: torch.dtype, reader: Reader | None = None) -> None:
        self._model, self._layout, self._dtype, self._reader = model, layout, dtype, reader
        self._waiting: _Waiting | None = None
        self.found: dict[int, Reading] = {}

    def read(self, depth: int, state_RSD: Tensor) -> None:
        """Read a state, now or together with the next one."""
        if self._reader is None:
            self.found[depth] = read(self._model, state_RSD, self._layout, self._dtype)
            return
        new = _Waiting(depth, predicting(state_RSD, self._layout))
        if self._waiting is None:
            self._waiting = new
        else:
            self._pair(self._reader, self._waiting, new)
            self._waiting = None

    def settle(self) -> None:
        """Read whatever is still waiting."""
        if self._waiting is not None and self._reader is not None:
            self._pair(self._reader, self._waiting, self._waiting)
            self._waiting = None

    def _pair(self, reader: Reader, one: _Waiting, other: _Waiting) -> None:
        log_p = read_two(reader, one.state_ND, other.state_ND)
        self.found[other.depth] = Reading.of(log_p.second, self._layout)
        self.found[one.depth] = Reading.of(log_p.first, self._layout)
