"""The mathematics of a path on a million updates with 21-point grids, against plain Python loops over the updates.

Each row runs some functions of `loopscope.path` on all updates at once, then the same definitions as a loop over the
first few, and compares the two: the loops are a second implementation. Their time is scaled to all updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from loopscope import path
from loopscope.bench.clock import Clock, Measured
from loopscope.bench.row import Reference, Row, Setting, at_most

POINTS = 21
UPDATES, QUICK_UPDATES, LOOPED = 1_000_000, 300, 2_000
"""Updates of the vectorised functions, the same for a test, and at most those that the loops take."""
LOOP = "a plain Python loop over the updates"
SECONDS = 5.0
"""What all of it may take on two cores."""


class Updates(NamedTuple):
    """Cubic paths φ = Aα + Qα² + cα³: all samples are exact and |φ'''| = 6|c| bounds itself."""

    grid: NDArray[Any]
    slope: NDArray[Any]
    quadratic: NDArray[Any]
    gain: NDArray[Any]
    gains: NDArray[Any]
    slopes: NDArray[Any]
    curvature: NDArray[Any]
    lipschitz: NDArray[Any]
    L_D: NDArray[Any]
    mu: NDArray[Any]
    M: NDArray[Any]


class Pair(NamedTuple):
    """Vectorised functions, and the body of the loop for update i."""

    name: str
    what: str
    vectorised: Callable[[Updates], tuple[Any, ...]]
    plain: Callable[[Updates, int], tuple[float, ...]]


def rows(setting: Setting) -> list[Row]:
    """A row for each pair, and all of them together."""
    updates = make_updates(QUICK_UPDATES if setting.quick else UPDATES)
    found = [measure(pair, updates, setting.sizes.slow_repeats) for pair in PAIRS]
    ours = reduce(Measured.plus, (row.measured for row in found))
    loop = reduce(Measured.plus, (row.references[0].measured for row in found))
    worst = max(row.figures["largest_difference"] for row in found)
    goals = (
        at_most(f"at most {SECONDS:g} s", SECONDS, ours.value, judged=not setting.quick),
        at_most("no difference to the loops above 1e-12", 1e-12, worst, judged=not setting.quick),
    )
    what = "All of the mathematics of a path, from outcomes to bounds"
    figures = {"largest_difference": worst}
    return [Row("mathematics", what, found[0].size, "s", ours, (Reference(LOOP, loop),), goals, figures), *found]


def measure(pair: Pair, updates: Updates, repeats: int) -> Row:
    """Both ways of one pair."""
    count = len(updates.slope)
    looped = min(LOOPED, count)
    fast, slow = pair.vectorised(updates), [pair.plain(updates, i) for i in range(looped)]
    raced = Clock(torch.device("cpu")).race(
        {
            "ours": lambda: pair.vectorised(updates),
            LOOP: lambda: [pair.plain(updates, i) for i in range(looped)],
        },
        repeats,
        warm_ups=0,
    )
    return Row(
        f"mathematics:{pair.name}",
        pair.what,
        {"updates": count, "points": POINTS},
        "s",
        raced["ours"],
        (Reference(LOOP, raced[LOOP].times(count / looped)),),
        figures={"largest_difference": disagreement(fast, slow)},
    )


def disagreement(fast: tuple[Any, ...], slow: list[tuple[float, ...]]) -> float:
    """The largest difference, NaN counting as equal to NaN alone."""
    columns = [np.asarray(column[: len(slow)], dtype=float) for column in fast]
    expected = [np.array(column, dtype=float) for column in zip(*slow, strict=True)]
    worst = 0.0
    for ours, theirs in zip(columns, expected, strict=True):
        if not np.array_equal(np.isnan(ours), np.isnan(theirs)):
            return math.inf
        worst = max(worst, float(np.nanmax(np.abs(ours - theirs), initial=0.0)))
    return worst


def make_updates(count: int, seed: int = 20260904) -> Updates:
    """Random cubic paths with everything that the functions ask for."""
    rng = np.random.default_rng(seed)
    grid = path.uniform_grid(POINTS)
    slope, quadratic, cubic = rng.normal(0.1, 0.3, count), rng.normal(-0.3, 0.3, count), rng.normal(0, 0.05, count)
    A, Q, c = slope[:, None], quadratic[:, None], cubic[:, None]
    gains = grid * (A + grid * (Q + grid * c))
    curvature = 2 * Q + 6 * c * grid
    return Updates(
        grid,
        slope,
        quadratic,
        gains[:, -1].copy(),
        gains,
        A + grid * (2 * Q + grid * 3 * c),
        curvature,
        np.repeat(6 * np.abs(c), POINTS - 1, axis=1),
        np.maximum(-curvature.min(axis=1), 0.0),
        np.maximum(-curvature.max(axis=1), 1e-3),
        6 * np.abs(cubic),
    )


def _classify_all(u: Updates) -> tuple[Any, ...]:
    return path.classify(u.slope, u.gain), path.exceeds_margin(u.slope, u.gain)


def _classify_one(u: Updates, i: int) -> tuple[float, ...]:
    A, gain = float(u.slope[i]), float(u.gain[i])
    code = 0 if gain > 0 else 1 if gain == 0 else 3 if A > 0 else 2
    return code, A > 1e-4 and -gain > 1e-4


def _predict_all(u: Updates) -> tuple[Any, ...]:
    return path.predict(u.slope, u.quadratic)


def _predict_one(u: Updates, i: int) -> tuple[float, ...]:
    A, Q = float(u.slope[i]), float(u.quadratic[i])
    alpha = min(1.0, max(0.0, -A / (2 * Q))) if Q < 0 else float(A + Q > 0)
    return A + Q, alpha, -A / Q if A > 0 and Q < 0 else math.nan


def _grid_all(u: Updates) -> tuple[Any, ...]:
    alpha = path.predicted_scale(u.slope, u.quadratic)
    best = path.grid_optimum(u.grid, u.gains)
    return best.alpha, path.nearest_action(u.grid, alpha).alpha, path.grid_regret(u.grid, u.gains, alpha)


def _grid_one(u: Updates, i: int) -> tuple[float, ...]:
    values = u.gains[i].tolist()
    best = max(range(POINTS), key=lambda k: (values[k], -k))
    scale = _predict_one(u, i)[1]
    near = min(range(POINTS), key=lambda k: (round(abs(k / (POINTS - 1) - scale), 15), k))
    return best / (POINTS - 1), near / (POINTS - 1), values[best] - values[near]


def _crossings_all(u: Updates) -> tuple[Any, ...]:
    crossing = path.sampled_crossing(u.grid, u.gains)
    return crossing.lower, crossing.upper, crossing.contains(path.quadratic_root(u.slope, u.quadratic))


def _crossings_one(u: Updates, i: int) -> tuple[float, ...]:
    grid, root = u.grid.tolist(), _predict_one(u, i)[2]
    for k, value in enumerate(u.gains[i].tolist()):
        if value < 0:
            return grid[k - 1], grid[k], grid[k - 1] <= root < grid[k]
    return math.nan, math.nan, False


def _oracles_all(u: Updates) -> tuple[Any, ...]:
    return path.oracles(u.grid, u.gains)


def _oracles_one(u: Updates, i: int) -> tuple[float, ...]:
    values = u.gains[i].tolist()
    halt, step = max(values[0], values[-1]), max(values)
    return halt, step, u.grid[values.index(step)], step - halt, step - values[-1], max(values[1:-1]) > halt


def _sums_all(u: Updates) -> tuple[Any, ...]:
    deviation = path.curvature_deviation(u.grid, u.curvature, u.lipschitz)
    envelope = path.residual_envelope(u.grid, u.slopes, u.quadratic, u.lipschitz, deviation.upper)
    return deviation.lower, deviation.upper, envelope


def _sums_one(u: Updates, i: int) -> tuple[float, ...]:
    t, curvature, slopes, L = (column.tolist() for column in (u.grid, u.curvature[i], u.slopes[i], u.lipschitz[i]))
    Q = float(u.quadratic[i])
    lower = upper = residual = 0.0
    for k in range(POINTS - 1):
        h = t[k + 1] - t[k]
        T = h / 2 * (abs(curvature[k] - curvature[0]) + abs(curvature[k + 1] - curvature[0]))
        P = L[k] * h * h / 4
        lower, upper = lower + max(0.0, T - P), upper + T + P
        ends = [abs(slopes[j] - slopes[0] - 2 * Q * t[j]) for j in (k, k + 1)]
        residual = max(residual, max(ends) + L[k] * h * h / 8)
    return lower, upper, min(upper, residual)


def _bounds_all(u: Updates) -> tuple[Any, ...]:
    deviation = path.taylor_deviation_bound(u.M)
    return (
        *path.endpoint_bound(u.slope, u.quadratic, deviation),
        path.scale_bound(deviation, u.quadratic),
        path.regret_bound(deviation, u.quadratic),
        path.diameter_bound(deviation, u.quadratic),
        path.combined_regret_bound(u.M, u.quadratic),
    )


def _bounds_one(u: Updates, i: int) -> tuple[float, ...]:
    A, Q, M = float(u.slope[i]), float(u.quadratic[i]), float(u.M[i])
    kappa, deviation = -2 * Q, M / 2
    sign = math.copysign(1, A + Q) if abs(A + Q) > deviation else 0
    if kappa <= 0:
        scale, regret, diameter = 1.0, deviation, 1.0
    else:
        scale, diameter = min(1.0, deviation / kappa), min(1.0, 2 * deviation / kappa)
        regret = deviation**2 / (2 * kappa) if deviation <= kappa else deviation - kappa / 2
    return A + Q - deviation, A + Q + deviation, sign, scale, regret, diameter, min(M / 3, regret)


def _ranges_all(u: Updates) -> tuple[Any, ...]:
    return (
        path.safe_scale(u.slope, u.L_D),
        *path.root_sandwich(u.slope, np.minimum(u.mu, u.L_D + 1e-3), u.L_D + 1e-3)[:4],
    )


def _ranges_one(u: Updates, i: int) -> tuple[float, ...]:
    A, L_D = float(u.slope[i]), float(u.L_D[i])
    if A <= 0:
        return (math.nan,) * 5
    safe = min(1.0, 0.9 * 2 * A / L_D) if L_D > 0 else 1.0
    steep = L_D + 1e-3
    low, high = 2 * A / steep, 2 * A / min(float(u.mu[i]), steep)
    return safe, low, high, min(1.0, low), min(1.0, high)


def _decomposition_all(u: Updates) -> tuple[Any, ...]:
    found = path.pathwise_decomposition(u.grid, u.curvature, u.slope, u.gain)
    return (found.correction,)


def _decomposition_one(u: Updates, i: int) -> tuple[float, ...]:
    """Simpson's rule, exact for these paths: (1 - s) φ'' is a parabola."""
    t, curvature = u.grid.tolist(), u.curvature[i].tolist()
    f = [(1 - t[k]) * curvature[k] for k in range(POINTS)]
    return (sum((t[k + 2] - t[k]) / 6 * (f[k] + 4 * f[k + 1] + f[k + 2]) for k in range(0, POINTS - 1, 2)),)


PAIRS = (
    Pair("classify", "Outcome and margin", _classify_all, _classify_one),
    Pair("predict", "A+Q, predicted scale and root", _predict_all, _predict_one),
    Pair("grid", "Grid optimum, action and regret", _grid_all, _grid_one),
    Pair("crossings", "Crossings and root hits", _crossings_all, _crossings_one),
    Pair("oracles", "Endpoint and step oracles", _oracles_all, _oracles_one),
    Pair("sums", "Partition sums and the residual's envelope", _sums_all, _sums_one),
    Pair("bounds", "Bounds of endpoint, scale and regret", _bounds_all, _bounds_one),
    Pair("ranges", "Safe scale and root sandwich", _ranges_all, _ranges_one),
    Pair("decomposition", "Pathwise decomposition", _decomposition_all, _decomposition_one),
)
