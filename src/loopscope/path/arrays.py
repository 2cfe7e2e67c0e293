"""Arguments become float64 arrays here, or are refused in one line.

Shapes used throughout `path`: the leading axes of an argument run over updates (none at all for a single
update, whose results are then plain scalars); the last axis of a sampled argument runs over m nodes or
grid points; cellwise constants have m - 1 entries on theirs.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopscope.errors import LoopscopeError

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.intp]
CodeArray: TypeAlias = NDArray[np.int8]
BoolArray: TypeAlias = NDArray[np.bool_]

# A float for one update and a float64 array for many (likewise ints and bools). NumPy types the results of
# its ufuncs in the same way, so that callers can index and compare them without a cast.
Floats: TypeAlias = Any
Ints: TypeAlias = Any
Bools: TypeAlias = Any

BLOCK = 4096


def as_floats(name: str, value: ArrayLike) -> FloatArray:
    """`value` as a float64 array of finite numbers."""
    array = as_numbers(name, value)
    finite = np.isfinite(array)
    if not finite.all():
        raise LoopscopeError(f"{name} is NaN or infinite{where(~finite)}: leave such updates out")
    return array


def as_numbers(name: str, value: ArrayLike) -> FloatArray:
    """`value` as a float64 array, NaN and infinities included."""
    try:
        raw = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LoopscopeError(f"{name} is not an array of numbers: {first_line(error)}") from error
    if raw.dtype.kind not in "fiu":
        raise LoopscopeError(f"{name} has dtype {raw.dtype}: give real numbers")
    return raw.astype(np.float64, copy=False)


def first_line(error: Exception) -> str:
    """The first line of an exception's text."""
    return str(error).partition("\n")[0]


def where(bad: BoolArray) -> str:
    """Where the first true entry of `bad` is, as a phrase for an error message."""
    if not bad.ndim:
        return ""
    position = ", ".join(str(axis[0]) for axis in np.nonzero(bad))
    return f" at index [{position}]"


def per_update(**arguments: ArrayLike) -> tuple[FloatArray, ...]:
    """The arguments as float64 arrays with one entry per update; a scalar goes with every update."""
    arrays = {name: as_floats(name, value) for name, value in arguments.items()}
    shaped = {name: array.shape for name, array in arrays.items() if array.ndim}
    if len(set(shaped.values())) > 1:
        listing = ", ".join(f"{name} {shape}" for name, shape in shaped.items())
        raise LoopscopeError(f"shapes differ ({listing}): give one entry per update in each")
    return tuple(arrays.values())


def non_negative(name: str, array: FloatArray) -> FloatArray:
    """`array`, refused where an entry is below zero."""
    require(array >= 0, f"{name} is negative", "it bounds a magnitude, give zero or more")
    return array


def unit_interval(name: str, array: FloatArray) -> FloatArray:
    """`array`, refused where an entry lies outside [0, 1]."""
    require((array >= 0) & (array <= 1), f"{name} lies outside [0, 1]", "scales are fractions of the update")
    return array


def require(condition: Any, complaint: str, remedy: str) -> None:
    """Raise `complaint`, the first offending index and `remedy` unless `condition` holds everywhere."""
    holds = np.asarray(condition)
    if not holds.all():
        raise LoopscopeError(f"{complaint}{where(~holds)}: {remedy}")


def partition(name: str, nodes: ArrayLike) -> FloatArray:
    """Nodes 0 = t_0 < ... < t_N = 1, N >= 1."""
    array = increasing(name, nodes)
    if array[-1] != 1:
        raise LoopscopeError(f"{name} ends at {array[-1]}: it must contain 1, the full update")
    return array


def increasing(name: str, nodes: ArrayLike) -> FloatArray:
    """Strictly increasing nodes that start at 0."""
    array = as_floats(name, nodes)
    if array.ndim != 1 or array.size < 2:
        raise LoopscopeError(f"{name} has shape {array.shape}: give at least the two scales 0 and 1 on one axis")
    if array[0] != 0:
        raise LoopscopeError(f"{name} starts at {array[0]}: it must contain 0, the current state")
    require(np.diff(array) > 0, f"{name} does not increase", "sort it and drop repeated scales")
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
    """Non-negative constants, one per cell on the last axis; a scalar serves every cell."""
    array = non_negative(name, as_floats(name, constants))
    cells = nodes.size - 1
    if array.ndim and array.shape[-1] != cells:
        raise LoopscopeError(
            f"{name} has shape {array.shape} for {cells} cells: give one constant per cell on the last axis"
        )
    return array


def same_updates(**shapes: tuple[int, ...]) -> None:
    """Refuse leading shapes that differ; an empty shape goes with every update."""
    shaped = {name: shape for name, shape in shapes.items() if shape}
    if len(set(shaped.values())) > 1:
        listing = ", ".join(f"{name} {shape}" for name, shape in shaped.items())
        raise LoopscopeError(f"numbers of updates differ ({listing}): give the same updates in each")


def row_blocks(rows: int) -> Iterator[slice]:
    """A few thousand rows at a time, so that the temporaries of each stay in the processor's cache."""
    for start in range(0, rows, BLOCK):
        yield slice(start, start + BLOCK)


def quiet() -> np.errstate:
    """Arithmetic that may leave float64: its result goes through `finite`, or infinity is its documented limit."""
    return np.errstate(over="ignore", under="ignore", invalid="ignore")


def finite(what: str, result: Any) -> Any:
    """`result`, refused where finite arguments led out of float64."""
    require(np.isfinite(result), f"{what} exceeds float64", "rescale the utility")
    return result


def plain(array: Any) -> Any:
    """A plain Python scalar for one update, the array itself for many."""
    array = np.asarray(array)
    return array if array.ndim else array.item()
