"""How fast `loopscope.path` classifies, predicts and bounds updates, against a plain loop over them.

    python benchmarks/path_bench.py [--updates 1000000] [--reference 2000] [--repeat 3]

Every row runs one part of the mathematics on all updates with 21-point grids, then the same definition as a
plain Python loop on the first few updates, and compares the two. The loop's time is given per update; making
the inputs is not counted.
"""

import argparse
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import loopscope
from loopscope import path

POINTS = 21
BUDGET_S = 5.0


class Updates(NamedTuple):
    """Cubic paths φ = Aα + Qα² + cα³: all samples are exact and |φ'''| = 6|c| bounds itself."""

    grid: np.ndarray
    slope: np.ndarray
    quadratic: np.ndarray
    gain: np.ndarray
    gains: np.ndarray
    slopes: np.ndarray
    curvature: np.ndarray
    lipschitz: np.ndarray
    L_D: np.ndarray
    mu: np.ndarray
    M: np.ndarray


def make_updates(count: int, seed: int = 20260904) -> Updates:
    rng = np.random.default_rng(seed)
    grid = path.uniform_grid(POINTS)
    slope, quadratic, cubic = rng.normal(0.1, 0.3, count), rng.normal(-0.3, 0.3, count), rng.normal(0, 0.05, count)
    A, Q, c = slope[:, None], quadratic[:, None], cubic[:, None]
    gains = grid * (A + grid * (Q + grid * c))
    curvature = 2 * Q + 6 * c * grid
    steepest = np.maximum(-curvature.min(axis=1), 0.0)
    return Updates(
        grid,
        slope,
        quadratic,
        gains[:, -1].copy(),
        gains,
        A + grid * (2 * Q + grid * 3 * c),
        curvature,
        np.repeat(6 * np.abs(c), POINTS - 1, axis=1),
        steepest,
        np.maximum(-curvature.max(axis=1), 1e-3),
        6 * np.abs(cubic),
    )


class Row(NamedTuple):
    """One line of the table: the vectorised call and the plain loop's body for update i."""

    name: str
    vectorised: Callable[[Updates], tuple[Any, ...]]
    plain: Callable[[Updates, int], tuple[float, ...]]


def classify_all(u: Updates) -> tuple[Any, ...]:
    return path.classify(u.slope, u.gain), path.exceeds_margin(u.slope, u.gain)


def classify_one(u: Updates, i: int) -> tuple[float, ...]:
    A, gain = float(u.slope[i]), float(u.gain[i])
    code = 0 if gain > 0 else 1 if gain == 0 else 3 if A > 0 else 2
    return code, A > 1e-4 and -gain > 1e-4


def predict_all(u: Updates) -> tuple[Any, ...]:
    return path.predict(u.slope, u.quadratic)


def predict_one(u: Updates, i: int) -> tuple[float, ...]:
    A, Q = float(u.slope[i]), float(u.quadratic[i])
    alpha = min(1.0, max(0.0, -A / (2 * Q))) if Q < 0 else float(A + Q > 0)
    return A + Q, alpha, -A / Q if A > 0 and Q < 0 else math.nan


def grid_all(u: Updates) -> tuple[Any, ...]:
    alpha = path.predicted_scale(u.slope, u.quadratic)
    best = path.grid_optimum(u.grid, u.gains)
    return best.alpha, path.nearest_action(u.grid, alpha).alpha, path.grid_regret(u.grid, u.gains, alpha)


def grid_one(u: Updates, i: int) -> tuple[float, ...]:
    values = u.gains[i].tolist()
    best = max(range(POINTS), key=lambda k: (values[k], -k))
    scale = predict_one(u, i)[1]
    near = min(range(POINTS), key=lambda k: (round(abs(k / (POINTS - 1) - scale), 15), k))
    return best / (POINTS - 1), near / (POINTS - 1), values[best] - values[near]


def crossings_all(u: Updates) -> tuple[Any, ...]:
    crossing = path.sampled_crossing(u.grid, u.gains)
    return crossing.lower, crossing.upper, crossing.contains(path.quadratic_root(u.slope, u.quadratic))


def crossings_one(u: Updates, i: int) -> tuple[float, ...]:
    grid, root = u.grid.tolist(), predict_one(u, i)[2]
    for k, value in enumerate(u.gains[i].tolist()):
        if value < 0:
            return grid[k - 1], grid[k], grid[k - 1] <= root < grid[k]
    return math.nan, math.nan, False


def oracles_all(u: Updates) -> tuple[Any, ...]:
    return path.oracles(u.grid, u.gains)


def oracles_one(u: Updates, i: int) -> tuple[float, ...]:
    values = u.gains[i].tolist()
    halt, step = max(values[0], values[-1]), max(values)
    return halt, step, u.grid[values.index(step)], step - halt, step - values[-1], max(values[1:-1]) > halt


def sums_all(u: Updates) -> tuple[Any, ...]:
    deviation = path.curvature_deviation(u.grid, u.curvature, u.lipschitz)
    envelope = path.residual_envelope(u.grid, u.slopes, u.quadratic, u.lipschitz, deviation.upper)
    return deviation.lower, deviation.upper, envelope


def sums_one(u: Updates, i: int) -> tuple[float, ...]:
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


def bounds_all(u: Updates) -> tuple[Any, ...]:
    deviation = path.taylor_deviation_bound(u.M)
    return (
        *path.endpoint_bound(u.slope, u.quadratic, deviation),
        path.scale_bound(deviation, u.quadratic),
        path.regret_bound(deviation, u.quadratic),
        path.diameter_bound(deviation, u.quadratic),
        path.combined_regret_bound(u.M, u.quadratic),
    )


def bounds_one(u: Updates, i: int) -> tuple[float, ...]:
    A, Q, M = float(u.slope[i]), float(u.quadratic[i]), float(u.M[i])
    kappa, deviation = -2 * Q, M / 2
    sign = math.copysign(1, A + Q) if abs(A + Q) > deviation else 0
    if kappa <= 0:
        scale, regret, diameter = 1.0, deviation, 1.0
    else:
        scale, diameter = min(1.0, deviation / kappa), min(1.0, 2 * deviation / kappa)
        regret = deviation**2 / (2 * kappa) if deviation <= kappa else deviation - kappa / 2
    return A + Q - deviation, A + Q + deviation, sign, scale, regret, diameter, min(M / 3, regret)


def ranges_all(u: Updates) -> tuple[Any, ...]:
    return (
        path.safe_scale(u.slope, u.L_D),
        *path.root_sandwich(u.slope, np.minimum(u.mu, u.L_D + 1e-3), u.L_D + 1e-3)[:4],
    )


def ranges_one(u: Updates, i: int) -> tuple[float, ...]:
    A, L_D = float(u.slope[i]), float(u.L_D[i])
    if A <= 0:
        return (math.nan,) * 5
    safe = min(1.0, 0.9 * 2 * A / L_D) if L_D > 0 else 1.0
    steep = L_D + 1e-3
    low, high = 2 * A / steep, 2 * A / min(float(u.mu[i]), steep)
    return safe, low, high, min(1.0, low), min(1.0, high)


def decomposition_all(u: Updates) -> tuple[Any, ...]:
    found = path.pathwise_decomposition(u.grid, u.curvature, u.slope, u.gain)
    return (found.correction,)


def decomposition_one(u: Updates, i: int) -> tuple[float, ...]:
    """Simpson's rule, exact for these paths: (1 - s) φ'' is a parabola."""
    t, curvature = u.grid.tolist(), u.curvature[i].tolist()
    f = [(1 - t[k]) * curvature[k] for k in range(POINTS)]
    return (sum((t[k + 2] - t[k]) / 6 * (f[k] + 4 * f[k + 1] + f[k + 2]) for k in range(0, POINTS - 1, 2)),)


ROWS = (
    Row("classify (outcome, margin)", classify_all, classify_one),
    Row("predict (A+Q, scale, root)", predict_all, predict_one),
    Row("grid optimum, action, regret", grid_all, grid_one),
    Row("crossings and root hits", crossings_all, crossings_one),
    Row("endpoint and step oracles", oracles_all, oracles_one),
    Row("partition sums, envelope", sums_all, sums_one),
    Row("endpoint/scale/regret bounds", bounds_all, bounds_one),
    Row("safe scale, root sandwich", ranges_all, ranges_one),
    Row("pathwise decomposition", decomposition_all, decomposition_one),
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


def best_of(repeat: int, call: Callable[[], Any]) -> tuple[float, Any]:
    """The shortest wall time of a few calls (others may be using the machine), and the last result."""
    shortest, result = math.inf, None
    for _ in range(repeat):
        start = time.perf_counter()
        result = call()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest, result


class Line(NamedTuple):
    """What one row of the table says."""

    name: str
    seconds: float
    plain: float
    """Seconds per update of the plain loop."""
    difference: float

    def text(self, updates: int) -> str:
        """The row as it is printed."""
        each = self.seconds / updates
        return (
            f"{self.name:30}{self.seconds:9.3f}{1 / each:14,.0f}{each * 1e9:11.1f}"
            f"{self.plain * 1e9:16,.0f}{self.plain / each:9,.0f}x{self.difference:12.1e}"
        )


def measure(row: Row, updates: Updates, subset: int, repeat: int) -> Line:
    seconds, fast = best_of(repeat, lambda: row.vectorised(updates))
    plain, slow = best_of(repeat, lambda: [row.plain(updates, i) for i in range(subset)])
    return Line(row.name, seconds, plain / subset, disagreement(fast, slow))


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--reference", type=int, default=2_000, help="updates given to the plain loop")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    updates = make_updates(options.updates)
    subset = min(options.reference, options.updates)

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{processor()}, {cores} cores; {platform.system()} {platform.machine()}")
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, loopscope {loopscope.__version__}")
    print(f"{options.updates:,} updates, {POINTS}-point grids; plain loop on {subset:,}; best of {options.repeat}\n")
    heads = (
        ("seconds", 9),
        ("updates/s", 14),
        ("ns/update", 11),
        ("loop ns/update", 16),
        ("speed-up", 10),
        ("difference", 12),
    )
    print(f"{'':30}" + "".join(f"{head:>{width}}" for head, width in heads))
    lines = []
    for row in ROWS:
        lines.append(measure(row, updates, subset, options.repeat))
        print(lines[-1].text(options.updates), flush=True)
    total, worst = sum(line.seconds for line in lines), max(line.difference for line in lines)
    print(Line("all", total, sum(line.plain for line in lines), worst).text(options.updates))
    if worst > 1e-12:
        print("the vectorised results and the plain loop disagree", file=sys.stderr)
        return 1
    if options.updates == 1_000_000 and total > BUDGET_S:
        print(f"slower than the {BUDGET_S:g} s this is held to on two cores", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
