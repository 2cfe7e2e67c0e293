"""Columns as one compressed text: what the page's script decodes with `DecompressionStream`.

A pack is a little-endian uint32 with the length of a JSON header, the header, and the bytes of every array one after
another; all of it deflated without a wrapper and written in base64. Floats have their bytes transposed (first all
lowest bytes, then all second ones), which brings similar bytes together and makes them a fifth smaller.
"""

import base64
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = ("f4", "i4", "u4", "u2", "i1", "u1")
"""Element types that the page reads."""
LEVEL = 7
"""Beyond this zlib takes twice the time for a hundredth of the size."""


def pack(arrays: Mapping[str, NDArray[Any]], values: Mapping[str, Any] | None = None) -> str:
    """Arrays and JSON values as one base64 text.

    Args:
        arrays: by name; each of one of `KINDS`, of any shape, written in C order.
        values: anything that JSON holds.
    """
    columns, parts = [], []
    for name, array in arrays.items():
        kind = array.dtype.str.lstrip("<|")
        if kind not in KINDS:
            raise ValueError(f"column {name} has type {array.dtype}, the page reads {', '.join(KINDS)}")
        data = np.ascontiguousarray(array).astype(f"<{kind}", copy=False)
        raw = transposed(data) if data.itemsize > 1 else data.tobytes()
        columns.append([name, kind, data.size])
        parts.append(raw)
    header = json.dumps({"columns": columns, "values": dict(values or {})}, ensure_ascii=False, separators=(",", ":"))
    encoded = header.encode()
    return base64.b64encode(deflate(b"".join([struct.pack("<I", len(encoded)), encoded, *parts]))).decode()


def transposed(data: NDArray[Any]) -> bytes:
    """The bytes of an array, grouped by their place in the element."""
    return data.reshape(-1).view(np.uint8).reshape(-1, data.itemsize).T.tobytes()


def deflate(data: bytes) -> bytes:
    """Raw deflate, which browsers call `deflate-raw`."""
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush()


def unpack(text: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read a pack again, arrays flat.

    >>> arrays, values = unpack(pack({"gain": np.array([0.5, -1.0], dtype="<f4")}, {"unit": "nats"}))
    >>> arrays["gain"].tolist(), values
    ([0.5, -1.0], {'unit': 'nats'})
    """
    data = zlib.decompress(base64.b64decode(text), -15)
    (length,) = struct.unpack_from("<I", data)
    header = json.loads(data[4 : 4 + length])
    arrays: dict[str, NDArray[Any]] = {}
    start = 4 + length
    for name, kind, count in header["columns"]:
        dtype = np.dtype(f"<{kind}")
        flat = np.frombuffer(data, np.uint8, count * dtype.itemsize, start)
        arrays[name] = np.ascontiguousarray(flat.reshape(dtype.itemsize, count).T).view(dtype).reshape(-1)
        start += count * dtype.itemsize
    return arrays, header["values"]
