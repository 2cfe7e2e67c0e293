"""Random smooth paths whose derivatives are known in closed form, and their true quantities.

Every family supplies φ and its first four derivatives exactly and a bound of |φ''''| on [0, 1]. The truths are
computed from those by dense sampling and plain bisection, never with the code under test.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import perm

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("loopscope", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("loopscope")

PATHS = 750
DENSE = 513

Evaluate = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class PathFamily:
    """`evaluate(order, alpha, rows)` broadcasts scales against row numbers and gives the order-th derivative of φ."""

    name: str
    count: int
    evaluate: Evaluate
    fourth: np.ndarray
    """A bound of |φ''''| on [0, 1], one per path."""
    concave: bool = False
    remembered: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def rows(self) -> np.ndarray:
        return np.arange(self.count)

    def on(self, nodes: np.ndarray, order: int = 0) -> np.ndarray:
        """The order-th derivative at the same nodes for every path, shape (count, nodes)."""
        blocks = [self.evaluate(order, nodes[None, :], rows[:, None]) for rows in np.array_split(self.rows, 20)]
        return np.concatenate(blocks)

    def at(self, alpha: np.ndarray, order: int = 0) -> np.ndarray:
        """The order-th derivative at one scale per path."""
        return self.evaluate(order, np.asarray(alpha, dtype=float) + np.zeros(self.count), self.rows)

    def function(self, order: int = 0) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        return lambda alpha, rows: self.evaluate(order, alpha, rows)

    @cached_property
    def slope(self) -> np.ndarray:
        return self.at(0.0, 1)

    @cached_property
    def quadratic(self) -> np.ndarray:
        return 0.5 * self.at(0.0, 2)

    @cached_property
    def gain(self) -> np.ndarray:
        return self.at(1.0)

    def cell_constants(self, nodes: np.ndarray) -> np.ndarray:
        """Bounds of |φ'''| on each cell: the larger end plus |φ''''| times half the width."""
        third = np.abs(self.on(nodes, 3))
        return np.maximum(third[:, :-1], third[:, 1:]) + 0.5 * np.diff(nodes) * self.fourth[:, None]

    def dense_samples(self, order: int) -> np.ndarray:
        if order not in self.remembered:
            self.remembered[order] = self.on(self.dense, order)
        return self.remembered[order]

    def bound_of(self, order: int) -> np.ndarray:
        """A bound of the order-th derivative's magnitude on [0, 1], from dense samples and the next order."""
        if order == 4:
            return self.fourth
        slack = 0.5 / (self.dense.size - 1) * self.bound_of(order + 1)
        return np.abs(self.dense_samples(order)).max(axis=1) + slack

    def extremes_of_curvature(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of φ'' on [0, 1]."""
        samples = self.dense_samples(2)
        slack = 0.5 / (self.dense.size - 1) * self.bound_of(3)
        return samples.min(axis=1) - slack, samples.max(axis=1) + slack

    @cached_property
    def dense(self) -> np.ndarray:
        return np.linspace(0.0, 1.0, DENSE)

    @cached_property
    def maximisers(self) -> tuple[np.ndarray, np.ndarray]:
        """The best scale of each path and its value: endpoints and every bisected zero of φ' seen from above."""
        slopes = self.dense_samples(1)
        rows, cells = np.nonzero((slopes[:, :-1] > 0) & (slopes[:, 1:] <= 0))
        lower, upper = self.dense[cells].copy(), self.dense[cells + 1].copy()
        for _ in range(60):
            middle = 0.5 * (lower + upper)
            rising = self.evaluate(1, middle, rows) > 0
            lower, upper = np.where(rising, middle, lower), np.where(rising, upper, middle)
        values = self.evaluate(0, upper, rows)
        alpha, best = np.zeros(self.count), np.zeros(self.count)
        for row, scale, value in zip(
            [*rows, *self.rows], [*upper, *np.ones(self.count)], [*values, *self.gain], strict=True
        ):
            if value > best[row]:
                alpha[row], best[row] = scale, value
        return alpha, best

    @cached_property
    def whole_deviation(self) -> tuple[np.ndarray, np.ndarray]:
        return self.deviation(np.ones(self.count))

    def deviation(self, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper enclosure of C(end), as the total variation of φ' - q' over dense cells of [0, end].

        Where φ'' - φ''(0) keeps its sign, the variation over a cell is its integral. It can only change sign
        in cells that start below L h in magnitude; those can hide at most L h² each.
        """
        nodes = np.asarray(end)[:, None] * self.dense
        rows = self.rows[:, None]
        residual = self.evaluate(1, nodes, rows) - 2 * self.quadratic[:, None] * nodes
        change = np.abs(np.diff(residual, axis=1)).sum(axis=1)
        width = np.asarray(end) / (self.dense.size - 1)
        reach = self.bound_of(3) * width
        start = np.abs(self.evaluate(2, nodes[:, :-1], rows) - 2 * self.quadratic[:, None])
        hidden = (start <= reach[:, None]).sum(axis=1) * reach * width
        return change, change + hidden


def polynomials(count: int, seed: int) -> PathFamily:
    rng = np.random.default_rng(seed)
    degree = 7
    coefficients = rng.normal(size=(count, degree + 1)) * rng.uniform(0.05, 1.0, (count, 1)) ** np.arange(degree + 1)
    coefficients[:, 0] = 0
    # A third are cubics with a small cubic term: the cases in which the bounds are tight.
    coefficients[: count // 3, 4:] = 0
    coefficients[: count // 3, 3] *= 0.1

    def evaluate(order: int, alpha: np.ndarray, rows: np.ndarray) -> np.ndarray:
        value = np.zeros(np.broadcast_shapes(np.shape(alpha), np.shape(rows)))
        for power in range(degree, order - 1, -1):
            value = value * alpha + coefficients[rows, power] * perm(power, order)
        return value

    powers = np.arange(degree + 1)
    return PathFamily(
        "polynomial",
        count,
        evaluate,
        np.abs(coefficients) @ (powers * (powers - 1) * (powers - 2) * (powers - 3)),
    )


def softmaxes(count: int, seed: int, *, signed: bool) -> PathFamily:
    """Weighted sums of log-softmax utilities of affine logits; concave if all weights are positive."""
    rng = np.random.default_rng(seed)
    tokens, words = 3, 5
    scale = rng.choice([0.3, 1.0, 4.0], (count, 1, 1))
    logits = rng.normal(size=(count, tokens, words)) * rng.choice([0.5, 2.0, 6.0], (count, 1, 1))
    moves = rng.normal(size=(count, tokens, words)) * scale
    weights = rng.normal(size=(count, tokens)) if signed else rng.dirichlet(np.ones(tokens), count)

    def cumulant(alpha: np.ndarray, rows: np.ndarray, token: int, order: int) -> np.ndarray:
        move = [moves[rows, token, word] for word in range(words)]
        z = [logits[rows, token, word] + alpha * move[word] for word in range(words)]
        top = np.maximum.reduce(z)
        mass = [np.exp(logit - top) for logit in z]
        total = sum(mass)
        if order == 0:
            return z[0] - top - np.log(total)
        mean = sum(p * v for p, v in zip(mass, move, strict=True)) / total
        if order == 1:
            return move[0] - mean
        centred = [v - mean for v in move]
        square = [c * c for c in centred]
        second = sum(p * s for p, s in zip(mass, square, strict=True)) / total
        if order == 2:
            return -second
        if order == 3:
            return -sum(p * s * c for p, s, c in zip(mass, square, centred, strict=True)) / total
        return 3 * second * second - sum(p * s * s for p, s in zip(mass, square, strict=True)) / total

    def evaluate(order: int, alpha: np.ndarray, rows: np.ndarray) -> np.ndarray:
        value = sum(weights[rows, token] * cumulant(alpha, rows, token, order) for token in range(tokens))
        if order == 0:
            zero = np.zeros(np.shape(rows))
            value = value - sum(weights[rows, token] * cumulant(zero, rows, token, 0) for token in range(tokens))
        return value

    # A variable of range R has fourth cumulant between -R⁴/8 and R⁴/12.
    spread = moves.max(axis=-1) - moves.min(axis=-1)
    return PathFamily(
        "signed softmax" if signed else "softmax",
        count,
        evaluate,
        (np.abs(weights) * spread**4 / 8).sum(axis=-1),
        concave=not signed,
    )


def oscillations(count: int, seed: int) -> PathFamily:
    rng = np.random.default_rng(seed)
    waves = 3
    amplitude = rng.normal(size=(count, waves))
    frequency = rng.uniform(0.3, 1.0, (count, waves)) * rng.choice([1.0, 4.0, 25.0], (count, 1))
    phase = rng.uniform(0, 2 * np.pi, (count, waves))

    def evaluate(order: int, alpha: np.ndarray, rows: np.ndarray) -> np.ndarray:
        value = 0.0
        for wave in range(waves):
            size, speed, offset = amplitude[rows, wave], frequency[rows, wave], phase[rows, wave]
            value = value + size * speed**order * np.sin(speed * alpha + offset + order * np.pi / 2)
            if order == 0:
                value = value - size * np.sin(offset)
        return value

    return PathFamily("oscillating", count, evaluate, (np.abs(amplitude) * frequency**4).sum(axis=-1))


FAMILIES = {
    "polynomial": lambda: polynomials(PATHS, 1),
    "softmax": lambda: softmaxes(PATHS, 2, signed=False),
    "signed softmax": lambda: softmaxes(PATHS, 3, signed=True),
    "oscillating": lambda: oscillations(PATHS, 4),
}
_made: dict[str, PathFamily] = {}


def family(name: str) -> PathFamily:
    if name not in _made:
        _made[name] = FAMILIES[name]()
    return _made[name]


@pytest.fixture(params=FAMILIES)
def paths(request: pytest.FixtureRequest) -> PathFamily:
    """Each family of random paths in turn."""
    return family(request.param)


@pytest.fixture
def concave_paths() -> PathFamily:
    return family("softmax")


@pytest.fixture
def rounding() -> float:
    """What float64 evaluation of bounds and truths of size one may be off by."""
    return 1e-12
