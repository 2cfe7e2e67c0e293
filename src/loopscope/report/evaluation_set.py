"""One evaluation set of one run as the page stores it, and what it packs of every question: an index and the texts.

The index (identifiers, first words, one number each for the plot) is read when the page opens. The texts are decoded
when a question is opened, or all at once for a search.

Shapes: N questions, T transitions, G = 21 grid scales. Numbers are transition-major, [T, N].
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopscope.errors import LoopscopeError, setting
from loopscope.path import grid_optimum
from loopscope.report.pack import pack
from loopscope.store import StoredRun
from loopscope.studies.conditions import Condition, conditions_of
from loopscope.studies.records import GRID_SCALES, Floats, Records, Updates, of_set

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
CHUNK_CHARACTERS = 200_000
"""A chunk of texts is closed when it holds this many characters."""


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
        frames = [Records([self.run]).other_table("certificates", updates.condition) for updates in self.updates]
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
    found = np.zeros(len(updates), np.uint8)
    if certificates is not None:
        own = updates.frame.select("row").join(certificates.select("row", "outcome"), on="row", how="left")
        codes = own["outcome"].cast(pl.Int64).fill_null(-1).to_numpy()
        found[codes >= 0] = np.where(codes == updates.outcome, 1, 2)[codes >= 0]
    return found


def sets_of(run: StoredRun) -> list[EvaluationSet]:
    """The evaluation sets of a run that have rows; an unfinished run shows what it has."""
    measured = Records([run]).updates
    found = []
    for condition in conditions_of(run):
        updates = tuple(each for each in measured if each.condition.same_set(condition))
        if updates:
            found.append(EvaluationSet(run, condition, updates))
    if not run.manifest.transitions:
        raise LoopscopeError(f"{run.path} has no update: measure again with {setting('transitions')}")
    if not found:
        raise LoopscopeError(f"{run.path} holds no measured question yet: let `loopscope measure` finish a unit first")
    return found


def column(frame: pl.DataFrame, name: str, dtype: Any) -> NDArray[Any]:
    """A column without nulls as an array of `dtype`."""
    return frame[name].to_numpy().astype(dtype)


def index(data: EvaluationSet) -> str:
    """The packed index of one evaluation set."""
    arrays: dict[str, Any] = {name: data.stacked(column) for name, column in NUMBERS.items()}
    arrays["outcome"] = np.stack([updates.outcome for updates in data.updates]).astype(np.uint8)
    certified = data.certified()
    if certified is not None:
        arrays["certified"] = certified
    grid = data.grid()
    if grid is not None:
        arrays["optimum"] = np.asarray(grid_optimum(GRID_SCALES, grid).alpha, dtype=np.float32)
    examples = data.examples
    values = {
        "ids": examples["example_id"].to_list(),
        "snippets": [snippet(prompt) for prompt in examples["prompt"].to_list()],
        "difficulty": None if examples["difficulty"].null_count() else examples["difficulty"].to_list(),
    }
    return pack(arrays, values)


def snippet(text: str) -> str:
    r"""The first words of a text on one line.

    >>> snippet("What is\n  one and one?")
    'What is one and one?'
    """
    # A megabyte of text need not be split to find its first words.
    words = " ".join(text[: 8 * SNIPPET].split())
    return words if len(words) <= SNIPPET else words[: SNIPPET - 1] + "…"


class TextChunks:
    """Packed chunks, and the first question of each."""

    def __init__(self, data: EvaluationSet) -> None:
        self.starts: list[int] = []
        self.packed: list[str] = []
        for start, entries in _cut(data):
            self.starts.append(start)
            self.packed.append(pack({}, {"entries": entries}))


Entry = tuple[str, str | None, list[str] | None, int | None]
"""Prompt, reference, options, index of the right option."""


def _cut(data: EvaluationSet) -> Iterator[tuple[int, list[Entry]]]:
    start, entries, size = 0, list[Entry](), 0
    for entry in data.examples.select("prompt", "reference", "options", "correct_option").iter_rows():
        prompt, reference, options, _ = entry
        entries.append(entry)
        size += len(prompt) + len(reference or "") + sum(map(len, options or ()))
        if size >= CHUNK_CHARACTERS:
            yield start, entries
            start, entries, size = start + len(entries), [], 0
    if entries:
        yield start, entries
