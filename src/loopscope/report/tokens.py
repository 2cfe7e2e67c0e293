"""Reference tokens for the page: where they stand in the text, their gains, and their own paths.

A whole validation set has millions of token paths, so their precision follows from how many there are: 32 bits, 8 bits
of the token's largest |φ|, or both ends alone. Gains of the full step are kept in 32 bits in any case.

Shapes: J tokens of all questions, T transitions, G = 21 grid scales.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopscope.report.evaluation_set import EvaluationSet, Single, column

EXACT_ROWS = 100_000
"""Up to this many token rows (tokens × transitions) paths are kept as they are stored: about 10 MB of page."""
COMPACT_ROWS = 1_500_000
"""Up to this many they are kept in 8 bits: about 20 MB of page."""
STEPS = 127


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
        start, end = _spans(data, first)
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


def _spans(data: EvaluationSet, tokens: pl.DataFrame) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
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
