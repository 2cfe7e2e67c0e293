"""What the page decodes when a question is opened: depths, option scores, paths, bounds, tokens.

A whole validation set has millions of token paths, so their precision follows from how many there are: 32 bits, 8 bits
of the token's largest |φ|, or both ends alone. Gains of the full step are kept in 32 bits in any case.

Shapes: N questions, T transitions, K depths, J reference tokens of all questions, G = 21 grid scales.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopscope.path import beneficial_range, quadratic_root, sampled_crossing
from loopscope.report.evaluation_set import EvaluationSet, Single, column
from loopscope.report.pack import pack
from loopscope.studies.records import GRID_SCALES

CHUNK = 64
"""Questions in a chunk: small enough to decode at once, large enough to compress well."""
EXACT_ROWS = 100_000
"""Up to this many token rows (tokens × transitions) paths are kept as they are stored: about 10 MB of page."""
COMPACT_ROWS = 1_500_000
"""Up to this many they are kept in 8 bits: about 20 MB of page."""
STEPS = 127
STORED = {
    "quadratic_gain": "quadratic_gain",
    "kl_correction": "kl_correction",
    "optimum_low": "fp64_optimum_low",
    "optimum_high": "fp64_optimum_high",
    "safe_scale": "fp64_safe_scale",
    "safe_gain": "fp64_safe_gain",
    "L_D": "fp64_L_D",
    "mu": "fp64_mu",
    "M": "fp64_M",
    "C_upper": "fp64_C_upper",
    "S": "fp64_S",
}
"""Columns of `questions` by the name that the page gives them; those without any value are left out."""


@dataclass(frozen=True)
class Details:
    """Every number of a set that only an opened question needs, whole; `chunks` cuts it."""

    data: EvaluationSet
    scalars: dict[str, Single]
    """[T, N] each."""
    grid: Single | None
    """[T, N, G]."""
    utility: Single
    """[N, K]."""
    option_counts: NDArray[np.int32] | None
    """[N]; None for solutions."""
    option_scores: Single | None
    """Flat over questions, depths and options."""
    tokens: "TokenTable | None"
    path: Single | None
    """φ at the nodes of the stored FP64 paths: [T, N, nodes]."""

    @classmethod
    def of(cls, data: EvaluationSet, tokens: "TokenTable | None", *, paths: bool) -> "Details":
        """Read what the run stores; `paths` says whether its FP64 paths go along."""
        grid = data.grid()
        rows = data.depth_rows
        options = data.condition.kind == "options" and not rows["option_scores"].null_count()
        counts = rows["option_scores"].list.len().to_numpy()[:: len(data.depths)].astype(np.int32) if options else None
        return cls(
            data,
            scalars(data),
            None if grid is None else grid.astype(np.float32),
            rows["utility"].to_numpy().reshape(len(data), len(data.depths)).astype(np.float32),
            counts,
            rows["option_scores"].explode().to_numpy().astype(np.float32) if options else None,
            tokens,
            np.stack([_paths(data, t) for t in data.transitions]) if paths else None,
        )

    def chunks(self) -> Iterator[str]:
        """Packed chunks of `CHUNK` questions, in order."""
        total = len(self.data)
        for start in range(0, total, CHUNK):
            yield pack(self._arrays(slice(start, min(start + CHUNK, total))), {"scalars": list(self.scalars)})

    def _arrays(self, rows: slice) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {name: values[:, rows] for name, values in self.scalars.items()}
        arrays["utility"] = self.utility[rows]
        if self.grid is not None:
            arrays["grid"] = self.grid[:, rows]
        if self.path is not None:
            arrays["path"] = self.path[:, rows]
        if self.option_counts is not None and self.option_scores is not None:
            ends = np.concatenate([[0], np.cumsum(self.option_counts)]) * len(self.data.depths)
            arrays["option_counts"] = self.option_counts[rows]
            arrays["option_scores"] = self.option_scores[ends[rows.start] : ends[rows.stop]]
        if self.tokens is not None:
            arrays |= self.tokens.arrays(rows)
        return arrays


def scalars(data: EvaluationSet) -> dict[str, Single]:
    """One number per update: stored columns, and what `loopscope.path` says of them."""
    found = {name: data.stacked(column) for name, column in STORED.items() if data.has(column)}
    roots = [quadratic_root(updates.slope, updates.quadratic) for updates in data.updates]
    found["root"] = np.stack(roots).astype(np.float32)
    grid = data.grid()
    if grid is not None:
        crossing = sampled_crossing(GRID_SCALES, grid)
        found["crossing_low"] = np.asarray(crossing.lower, dtype=np.float32)
        found["crossing_high"] = np.asarray(crossing.upper, dtype=np.float32)
    if data.has("fp64_boundary"):
        for index, end in enumerate(("low", "high")):
            ends = [updates.element("fp64_boundary", index) for updates in data.updates]
            found[f"boundary_{end}"] = np.stack(ends).astype(np.float32)
    if data.has("fp64_L_D"):
        found["safe_end"] = np.stack([_safe_end(data, index) for index in range(len(data.updates))])
    return found


def _safe_end(data: EvaluationSet, index: int) -> Single:
    """min{1, 2A/L_D}, the end of the range in which every scale helps; NaN where it is not known."""
    updates = data.updates[index]
    bound = updates.floats("fp64_L_D")
    end = np.full(len(updates), np.nan, dtype=np.float32)
    known = ~np.isnan(bound)
    end[known] = np.atleast_1d(beneficial_range(updates.floats("fp64_slope")[known], bound[known]).end)
    return end


def _paths(data: EvaluationSet, transition: int) -> Single:
    frame = data.paths(transition)
    return frame["gain"].explode().to_numpy().reshape(frame.height, -1).astype(np.float32)


class Precision(StrEnum):
    """How token paths are kept in the page."""

    EXACT = "exact"
    COMPACT = "compact"
    ENDS = "ends"

    @classmethod
    def of(cls, rows: int) -> "Precision":
        """The precision that keeps a page of `rows` token rows small enough to mail.

        >>> Precision.of(10_000), Precision.of(1_000_000), Precision.of(50_000_000)
        (<Precision.EXACT: 'exact'>, <Precision.COMPACT: 'compact'>, <Precision.ENDS: 'ends'>)
        """
        return cls.EXACT if rows <= EXACT_ROWS else cls.COMPACT if rows <= COMPACT_ROWS else cls.ENDS


@dataclass(frozen=True)
class TokenTable:
    """All reference tokens of one evaluation set."""

    offsets: NDArray[np.int64]
    """Where each question's tokens begin, and the end: [N + 1]."""
    option: NDArray[np.uint8]
    start: NDArray[np.int32]
    """First character in the reference or option, in UTF-16 units; -1 where the run does not say."""
    end: NDArray[np.int32]
    gain: Single
    """[T, J]."""
    grid: Single | None
    """[T, J, G]."""
    precision: Precision

    @classmethod
    def of(cls, data: EvaluationSet, precision: Precision) -> "TokenTable | None":
        """Read the token rows of a set; None where it has none."""
        frames = [data.tokens(transition) for transition in data.transitions]
        first = frames[0]
        if not first.height:
            return None
        rows = first["row"].to_numpy()
        start, end = text_spans(data, first)
        with_grid = precision is not Precision.ENDS and not any(frame["grid_gain"].null_count() for frame in frames)
        return cls(
            np.searchsorted(rows, np.append(data.examples["row"].to_numpy(), rows[-1] + 1)),
            column(first, "option", np.uint8),
            start,
            end,
            np.stack([column(frame, "gain", np.float32) for frame in frames]),
            np.stack([_grid(frame) for frame in frames]) if with_grid else None,
            precision if with_grid else Precision.ENDS,
        )

    def arrays(self, rows: slice) -> dict[str, NDArray[Any]]:
        """The tokens of some questions as columns of a chunk."""
        inside = slice(int(self.offsets[rows.start]), int(self.offsets[rows.stop]))
        arrays: dict[str, NDArray[Any]] = {
            "token_counts": np.diff(self.offsets[rows.start : rows.stop + 1]).astype(np.int32),
            "token_option": self.option[inside],
            "token_start": self.start[inside],
            "token_end": self.end[inside],
            "token_gain": self.gain[:, inside],
        }
        if self.grid is not None:
            grid = self.grid[:, inside]
            if self.precision is Precision.EXACT:
                arrays["token_grid"] = grid
            else:
                arrays["token_scale"], arrays["token_steps"] = quantised(grid)
        return arrays


def quantised(grid: Single) -> tuple[Single, NDArray[np.int8]]:
    """Paths in 8 bits: a step size per token, and the difference of each grid point to the one before it.

    Differences wrap around at 8 bits, and sums of them wrap back.

    >>> step, differences = quantised(np.array([[0.0, 0.5, -1.0]], dtype=np.float32))
    >>> (differences.cumsum(axis=-1, dtype=np.int8) * step[:, None]).round(2).tolist()
    [[0.0, 0.5, -1.0]]
    """
    step = np.abs(grid).max(axis=-1) / np.float32(STEPS)
    levels = np.rint(np.divide(grid, step[..., None], out=np.zeros_like(grid), where=step[..., None] > 0))
    differences = np.diff(levels.astype(np.int16), axis=-1, prepend=np.int16(0)).astype(np.int8)
    return step.astype(np.float32), differences


def _grid(frame: pl.DataFrame) -> Single:
    return frame["grid_gain"].explode().to_numpy().reshape(frame.height, -1).astype(np.float32)


def text_spans(data: EvaluationSet, tokens: pl.DataFrame) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """First character of each token and the one after its last, in UTF-16 units; -1 where the run does not say."""
    spans = [tokens[name].fill_null(-1).to_numpy().astype(np.int32) for name in ("text_start", "text_end")]
    start, end = spans
    astral = {
        (row, option): units
        for row, option, text in _texts(data)
        if not text.isascii() and (units := utf16_offsets(text)) is not None
    }
    if astral:
        place = zip(tokens["row"].to_list(), tokens["option"].to_list(), strict=True)
        for index, key in enumerate(place):
            units = astral.get(key)
            if units is not None and start[index] >= 0:
                start[index], end[index] = units[start[index]], units[end[index]]
    return start, end


def _texts(data: EvaluationSet) -> list[tuple[int, int, str]]:
    frame = data.examples.select("row", "reference", "options")
    found = []
    for row, reference, options in frame.iter_rows():
        texts = options if options is not None else [reference or ""]
        found += [(row, option, text) for option, text in enumerate(texts)]
    return found


def utf16_offsets(text: str) -> list[int] | None:
    r"""Where each character begins as browsers count, in UTF-16 units; None where that is its own index.

    >>> utf16_offsets("a\N{GRINNING FACE}b")
    [0, 1, 3, 4]
    >>> utf16_offsets("aé") is None
    True
    """
    if not text or max(text) <= "\uffff":
        return None
    return [0, *accumulate(2 if character > "\uffff" else 1 for character in text)]
