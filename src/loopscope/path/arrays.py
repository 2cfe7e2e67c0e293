"""Arguments as float64 arrays; unsuitable ones are refused in one line.

Shapes used throughout `path`: the leading axes of an argument run over updates (none at all for a single
update, whose results are then plain scalars); the last axis of a sampled argument runs over m nodes or
grid points; cellwise constants have m - 1 entries on theirs.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopscope.errors import LoopscopeError

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.intp]

# A float for one update and a float64 array for many (likewise ints and bools). NumPy types the results of
# its ufuncs in the same way, so that callers can index and compare them without a cast.
Floats: TypeAlias = Any
Ints: TypeAlias = Any
Bools: TypeAlias = Any


class Interval(NamedTuple):
    """lower ≤ quantity ≤ upper, per update."""

    lower: Floats
    upper: Floats


# An argument of one of these names means the same in every function, and has the same range.
SCALES = frozenset({"alpha", "predicted", "scale"})
MAGNITUDES = frozenset({"L_D", "M", "deviation", "lipschitz"})


def as_floats(name: str, value: ArrayLike) -> FloatArray:
    """`value` as a float64 array of finite numbers, in the range of arguments of that name."""
    try:
        raw = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise LoopscopeError(f"{name} is not an array of numbers: {reason}") from error
    if raw.dtype.kind not in "fiu":
        raise LoopscopeError(f"{name} has dtype {raw.dtype}: give real numbers")
    array = raw.astype(np.float64, copy=False)
    require(np.isfinite(array), f"{name} is NaN or infinite", "leave such updates out")
    if name in SCALES:
        require((array >= 0) & (array <= 1), f"{name} lies outside [0, 1]", "scales are fractions of the update")
    if name in MAGNITUDES:
        require(array >= 0, f"{name} is negative", "it bounds a magnitude, give zero or more")
    return array


def per_update(**arguments: ArrayLike) -> tuple[FloatArray, ...]:
    """The arguments as float64 arrays with one entry per update; a scalar goes with every update."""
    arrays = {name: as_floats(name, value) for name, value in arguments.items()}
    same_updates(**{name: array.shape for name, array in arrays.items()})
    return tuple(arrays.values())


def same_updates(**shapes: tuple[int, ...]) -> None:
    """Refuse leading shapes that differ; an empty shape goes with every update."""
    shaped = {name: shape for name, shape in shapes.items() if shape}
    if len(set(shaped.values())) > 1:
        listing = ", ".join(f"{name} {shape}" for name, shape in shaped.items())
        raise LoopscopeError(f"shapes differ ({listing}): give one entry per update in each")


def require(condition: Any, complaint: str, remedy: str) -> None:
    """Raise `complaint`, the first offending index and `remedy` unless `condition` holds everywhere."""
    bad = ~np.asarray(condition)
    if bad.any():
        place = f" at index {[int(axis[0]) for axis in np.nonzero(bad)]}" if bad.ndim else ""
        raise LoopscopeError(f"{complaint}{place}: {remedy}")


def partition(name: str, nodes: ArrayLike, *, whole: bool = True) -> FloatArray:
    """Nodes 0 = t_0 < ... < t_N, N >= 1, with t_N = 1 if they cover the whole update."""
    array = as_floats(name, nodes)
    if array.ndim != 1 or array.size < 2:
        raise LoopscopeError(f"{name} has shape {array.shape}: give at least the two scales 0 and 1 on one axis")
    if array[0] != 0:
        raise LoopscopeError(f"{name} starts at {array[0]}: it must contain 0, the current state")
    require(np.diff(array) > 0, f"{name} does not increase", "sort it and drop repeated scales")
    if whole and array[-1] != 1:
        raise LoopscopeError(f"{name} ends at {array[-1]}: it must contain 1, the full update")
    return array


def sampled(name: str, samples: ArrayLike, nodes: FloatArray) -> FloatArray:
    """Samples of a function of the scale: one entry per node on the last axis."""
    array = as_floats(name, samples)
    if array.shape[-1:] != nodes.shape:
        raise LoopscopeError(
            f"{name} has shape {array.shape} for {nodes.size} scales: give one entry per scale on the last axis"
        )
    return array


def cellwise(name: str, constants: ArrayLike, nodes: FloatArray) -> FloatArray:
    """Constants, one per cell on the last axis; a scalar serves every cell."""
    array, cells = as_floats(name, constants), nodes.size - 1
    if array.ndim and array.shape[-1] != cells:
        raise LoopscopeError(
            f"{name} has shape {array.shape} for {cells} cells: give one constant per cell on the last axis"
        )
    return array


def quiet() -> np.errstate:
    """Arithmetic that may leave float64: its result goes through `finite`, or infinity is its documented limit."""
    return np.errstate(all="ignore")


def finite(what: str, result: Any) -> Any:
    """`result`, refused where finite arguments led out of float64."""
    require(np.isfinite(result), f"{what} exceeds float64", "rescale the utility")
    return result


def plain(array: Any) -> Any:
    """A plain Python scalar for one update, the array itself for many."""
    array = np.asarray(array)
    return array if array.ndim else array.item()
