"""The fitted scale 1 + ω of an update k → R: where along it, or beyond its end, the mean utility is best.

A readout is taken at H_k + (1 + ω)(H_R − H_k), or at z_k + (1 + ω)(z_R − z_k): the same under an affine readout.
Omega is chosen on the train questions and frozen; all gains are those of the test questions over the fixed depth R. A
fitted scale above 1 says that the update is too short, one below 1 that it is too long.

Shapes: Q questions, T loops, J scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopscope.control.offline import Costs
from loopscope.control.trace import Floats
from loopscope.stats import Best, Mean


@dataclass(frozen=True)
class Curve:
    """The utility of questions along one update.

    Attributes:
        kind: "path" of the states, or of the logits "chord", "orthogonal" or "temperature" (`Policy.direction`).
        reference: k; None of a temperature.
        depth: R.
        scale_J: 1 + ω, an even grid that has 1.
        train_QJ: utilities of the train questions.
        test_QJ: those of the test questions.
    """

    kind: str
    reference: int | None
    depth: int
    scale_J: Floats
    train_QJ: Floats
    test_QJ: Floats

    @property
    def fitted(self) -> int:
        """The place of the best scale on the train questions."""
        return int(np.argmax(self.train_QJ.mean(axis=0)))

    @property
    def test_utility(self) -> Floats:
        """Utilities of the test questions there."""
        return self.test_QJ[:, self.fitted]

    @property
    def name(self) -> str:
        """The kind and the ends."""
        ends = f"at {self.depth}" if self.reference is None else f"{self.reference}>{self.depth}"
        return f"{self.kind} {ends}"


def between_depths(train_QT: Floats, test_QT: Floats, loops: float) -> Floats:
    """The test utility of fixed depths that take so many loops on average, [Q].

    Tokens take one of two neighbouring depths at random; beyond the best depth of the train questions, that one.

    >>> between_depths(np.array([[0.0, 2.0, 1.0]]), np.array([[0.0, 4.0, 5.0]]), 1.5)
    array([2.])
    """
    means = train_QT.mean(axis=0)
    best = [int(np.argmax(means[: depth + 1])) for depth in range(len(means))]
    place = float(np.clip(loops - 1, 0, len(means) - 1))
    low, high = best[int(place)], best[min(int(place) + 1, len(means) - 1)]
    share = place - int(place)
    found: Floats = (1 - share) * test_QT[:, low] + share * test_QT[:, high]
    return found


def fitted_scales(
    curves: Sequence[Curve], train_QT: Floats, test_QT: Floats, costs: Costs
) -> dict[str, dict[str, Any]]:
    """What the fitted scale of every curve gains, by the curve's name, as statistics to be resampled.

    Args:
        curves: of one model and task.
        train_QT: utilities of the train questions after 1 … T loops.
        test_QT: those of the test questions.
        costs: of a readout: the second one, for z_k, is charged wherever k is read.
    """
    temperatures = {curve.depth: curve.test_utility for curve in curves if curve.kind == "temperature"}
    found: dict[str, dict[str, Any]] = {}
    for curve in curves:
        full_Q, loops = curve.test_QJ[:, int(np.argmin(abs(curve.scale_J - 1)))], curve.depth
        cost = loops + (curve.reference is not None) * costs.check
        next_Q = test_QT[:, loops] if loops < test_QT.shape[1] else None
        other_Q = temperatures.get(loops) if curve.kind != "temperature" else None
        found[curve.name] = {
            "kind": curve.kind,
            "reference": curve.reference,
            "depth": loops,
            "fitted": Best(curve.scale_J, curve.train_QJ),
            "gain": Mean(curve.test_utility - full_Q),
            "over_line": Mean(curve.test_utility - between_depths(train_QT, test_QT, cost)),
            "over_temperature": None if other_Q is None else Mean(curve.test_utility - other_Q),
            "next_loop": None if next_Q is None else Mean(next_Q - test_QT[:, loops - 1]),
            "cost": cost + costs.outside,
        }
    return found
