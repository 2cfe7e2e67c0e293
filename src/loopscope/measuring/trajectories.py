"""Trajectories with changed updates: how the gain of a shorter step fares in the loops that follow.

    one       H_{t+1} ← H_t + α·(F(H_t) − H_t) at the update t → t+1; every later update in full
    onwards   the same at t → t+1 and at every later update; from t = 0, at every update

Every position takes the same scale, later loops run on the changed states, and the utility is read after each of them.
A model's carry, if it has one, is that of the full step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from loopscope.measuring.layout import Layout
from loopscope.measuring.reading import GeneralReadout
from loopscope.measuring.transfer import Columns
from loopscope.models.walk import Walk


class Trajectories:
    """The rows of `trajectories` of a batch, collected while it is on its way."""

    def __init__(
        self,
        readout: GeneralReadout,
        layout: Layout,
        scales: Sequence[float],
        starts: Sequence[int],
        deepest: int,
        separate: Callable[[Tensor], Tensor],
    ) -> None:
        self._readout, self._layout, self._separate = readout, layout, separate
        self._scales, self._deepest, self._starts = scales, deepest, {0, *starts}
        self.found: list[Columns] = []

    def see(self, before: Tensor, walk: Walk) -> None:
        """An update of the walk, from `before` to where it is: what follows if it is changed."""
        start = walk.depth - 1
        if start not in self._starts or walk.depth > self._deepest:
            return
        for scale in self._scales:
            for onwards in (False, True):
                self._follow(before, walk, start, scale, onwards)

    def _follow(self, before: Tensor, walk: Walk, start: int, scale: float, onwards: bool) -> None:
        changed = walk.changed(_between(before, walk.state, scale))
        self._note(changed, start, scale, onwards)
        while changed.depth < self._deepest:
            last = changed.state
            changed.advance()
            if onwards:
                changed = changed.changed(_between(last, changed.state, scale))
            self._note(changed, start, scale, onwards)

    def _note(self, walk: Walk, start: int, scale: float, onwards: bool) -> None:
        questions = self._layout.questions
        reading = self._readout.read(self._separate(walk.state), self._layout)
        self.found.append(
            {
                "row": np.asarray([question.row for question in questions]),
                "example_id": [question.example.id for question in questions],
                "depth": np.full(len(questions), walk.depth),
                "transition": np.full(len(questions), start),
                "onwards": np.full(len(questions), onwards),
                "scale": np.full(len(questions), scale),
                "utility": reading.utility_B,
            }
        )


def _between(before: Tensor, after: Tensor, scale: float) -> Tensor:
    """H + α·D in the arithmetic of the states; the ends exactly."""
    if scale in (0.0, 1.0):
        return before if scale == 0.0 else after
    return torch.lerp(before, after, scale)
