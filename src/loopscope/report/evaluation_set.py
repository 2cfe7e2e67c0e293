"""One evaluation set of one run as the page stores it, and what it packs of every question: an index and the texts.

The index (identifiers, first words, one number each for the plot) is read when the page opens. The texts are decoded
when a question is opened, or all at once for a search.

A pack is columns as one compressed text, which the page's script decodes with `DecompressionStream`: a little-endian
uint32 with the length of a JSON header, the header, and the bytes of every array one after another; all of it deflated
without a wrapper and written in base64. Floats have their bytes transposed (first all lowest bytes, then all second
ones), which brings similar bytes together and makes them a fifth smaller.

Shapes: N questions, T transitions, G = 21 grid scales. Numbers are transition-major, [T, N].
"""

import base64
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopscope.errors import LoopscopeError, setting
from loopscope.path import grid_optimum
from loopscope.store import StoredRun
from loopscope.studies.conditions import Condition, conditions_of
from loopscope.studies.records import GRID_SCALES, Floats, Records, Updates, of_set

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


Single = NDArray[np.float32]

SNIPPET = 110
"""Characters of a question that tables and tooltips show."""
NUMBERS = {
    "slope": "slope",
    "gain": "gain",
    "quadratic": "quadratic",
    "scale": "quadratic_scale",
    "before": "utility_before",
}
CHUNK = 64
"""Questions in a chunk: small enough to decode at once, large enough to compress well."""


@dataclass(frozen=True)
class EvaluationSet:
    """The stored rows of one task and split."""

    run: StoredRun
    condition: Condition
    updates: tuple[Updates, ...]
    """One per transition, every one over the same questions in the same order."""

    @property
    def transitions(self) -> tuple[int, ...]:
        """Each t of an update t → t+1."""
        return tuple(self.run.manifest.transitions)

    @property
    def depths(self) -> tuple[int, ...]:
        """The depths at which utilities are stored."""
        return tuple(self.run.manifest.depths)

    @cached_property
    def examples(self) -> pl.DataFrame:
        """The texts, in order."""
        return self.run.examples.filter(of_set(self.condition)).sort("row")

    def __len__(self) -> int:
        return self.examples.height

    @property
    def token_rows(self) -> int:
        """How many rows of tokens it has."""
        return int(self.examples["n_tokens"].sum()) * len(self.updates) * self.run.manifest.tokens

    @cached_property
    def depth_rows(self) -> pl.DataFrame:
        """The `depths` rows, by question and then by depth."""
        return self.run.depths.filter(of_set(self.condition)).sort("row", "depth")

    def stacked(self, column: str) -> Single:
        """A column of every transition, NaN for null: [T, N]."""
        return np.stack([updates.floats(column) for updates in self.updates]).astype(np.float32)

    def has(self, column: str) -> bool:
        """Whether any row has a value in this column."""
        return any(updates.has_some(column) for updates in self.updates)

    def grid(self) -> Floats | None:
        """φ on the grid, [T, N, G]; None where the run's level has none."""
        if not all(updates.has("grid_gain") for updates in self.updates):
            return None
        return np.stack([updates.grid_gain for updates in self.updates])

    def certified(self) -> NDArray[np.uint8] | None:
        """How each outcome stands: 0 open, 1 certified, 2 certified to be another one, [T, N]; None without."""
        records = Records([self.run])
        frames = [records.other_table("certificates", updates.condition) for updates in self.updates]
        if all(frame is None for frame in frames):
            return None
        return np.stack([_standing(updates, frame) for updates, frame in zip(self.updates, frames, strict=True)])

    def tokens(self, transition: int) -> pl.DataFrame:
        """The token rows of one transition, by question, option and token."""
        rows = self.run.tokens.filter(of_set(self.condition), pl.col("transition") == transition)
        return rows.collect().sort("row", "option", "token")

    def paths(self, transition: int) -> pl.DataFrame:
        """The stored FP64 paths of one transition, by question."""
        rows = self.run.paths.filter(of_set(self.condition), pl.col("transition") == transition)
        return rows.select("row", "gain").collect().sort("row")


def _standing(updates: Updates, certificates: pl.DataFrame | None) -> NDArray[np.uint8]:
    if certificates is None:
        return np.zeros(len(updates), np.uint8)
    joined = updates.frame.select("row").join(certificates.select("row", "outcome"), on="row", how="left")
    codes = joined["outcome"].cast(pl.Int64).fill_null(-1).to_numpy()
    return np.where(codes < 0, 0, np.where(codes == updates.outcome, 1, 2)).astype(np.uint8)


def sets_of(run: StoredRun) -> list[EvaluationSet]:
    """The evaluation sets of a run that have rows; an unfinished run shows what it has."""
    if not run.manifest.transitions:
        raise LoopscopeError(f"{run.path} has no update: measure again with {setting('transitions')}")
    measured = Records([run]).updates
    if not measured:
        raise LoopscopeError(f"{run.path} holds no measured question yet: let `loopscope measure` finish a unit first")
    updates = {
        condition: [each for each in measured if each.condition.same_set(condition)] for condition in conditions_of(run)
    }
    return [EvaluationSet(run, condition, tuple(each)) for condition, each in updates.items() if each]


def index(data: EvaluationSet) -> str:
    """The packed index of one evaluation set."""
    arrays: dict[str, Any] = {name: data.stacked(column) for name, column in NUMBERS.items()}
    arrays["outcome"] = np.stack([updates.outcome for updates in data.updates]).astype(np.uint8)
    if (certified := data.certified()) is not None:
        arrays["certified"] = certified
    if (grid := data.grid()) is not None:
        arrays["optimum"] = np.asarray(grid_optimum(GRID_SCALES, grid).alpha, dtype=np.float32)
    snippets = list(map(snippet, data.examples["prompt"]))
    return pack(arrays, {"ids": data.examples["example_id"].to_list(), "snippets": snippets})


def snippet(text: str) -> str:
    r"""The first words of a text on one line.

    >>> snippet("What is\n  one and one?")
    'What is one and one?'
    """
    # A megabyte of text need not be split to find its first words.
    words = " ".join(text[: 8 * SNIPPET].split())
    return words if len(words) <= SNIPPET else words[: SNIPPET - 1] + "…"


def text_chunks(data: EvaluationSet) -> Iterator[str]:
    """Prompt, reference, options and index of the right option, of `CHUNK` questions each."""
    entries = data.examples.select("prompt", "reference", "options", "correct_option").rows()
    for start in range(0, len(entries), CHUNK):
        yield pack({}, {"entries": entries[start : start + CHUNK]})
