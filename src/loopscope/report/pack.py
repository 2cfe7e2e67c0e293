"""Columns as one compressed text: what the page's script decodes with `DecompressionStream`.

A pack is a little-endian uint32 with the length of a JSON header, the header, and the bytes of every array one after
another; all of it deflated without a wrapper and written in base64. Floats have their bytes transposed (first all
lowest bytes, then all second ones), which brings similar bytes together and makes them a fifth smaller.
"""

import base64
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

KINDS = ("f4", "i4", "u4", "i2", "u2", "i1", "u1")
"""Element types that the page reads."""
LEVEL = 7
"""Beyond this zlib takes twice the time for a hundredth of the size."""

Arrays = Mapping[str, NDArray[Any]]


class Ragged(NamedTuple):
    """Columns with a different number of rows for every question, one question after another."""

    name: str
    """The page finds the number of rows of each question under this name."""
    offsets: NDArray[np.int64]
    """Where the rows of each question begin, and the end: [N + 1]."""
    columns: Arrays


def pack(arrays: Arrays, values: Mapping[str, Any] | None = None) -> str:
    """Arrays (of `KINDS`, any shape, in C order) and JSON values as one base64 text."""
    columns, parts = [], []
    for name, array in arrays.items():
        kind = array.dtype.str.lstrip("<|")
        if kind not in KINDS:
            raise ValueError(f"column {name} has type {array.dtype}, the page reads {', '.join(KINDS)}")
        flat = np.ascontiguousarray(array).astype(f"<{kind}", copy=False).reshape(-1)
        columns.append([name, kind, flat.size])
        parts.append(flat.view(np.uint8).reshape(-1, flat.itemsize).T.tobytes())
    header = json.dumps({"columns": columns, "values": dict(values or {})}, ensure_ascii=False, separators=(",", ":"))
    encoded = header.encode()
    data = b"".join([struct.pack("<I", len(encoded)), encoded, *parts])
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -15)
    return base64.b64encode(compressor.compress(data) + compressor.flush()).decode()


def packed_chunks(total: int, size: int, arrays: Arrays, ragged: tuple[Ragged, ...] = ()) -> Iterator[str]:
    """Packs of `size` questions in order; the first axis of `arrays` is the question."""
    for start, stop in pairwise([*range(0, total, size), total]):
        found = {name: values[start:stop] for name, values in arrays.items()}
        for each in ragged:
            found[each.name] = np.diff(each.offsets[start : stop + 1]).astype(np.int32)
            inside = slice(int(each.offsets[start]), int(each.offsets[stop]))
            found |= {name: values[inside] for name, values in each.columns.items()}
        yield pack(found)
