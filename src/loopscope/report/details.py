"""What the page decodes when a question is opened: depths, option scores, paths, bounds; in chunks of questions.

Shapes: n questions of a chunk, T transitions, K depths, G = 21 grid scales.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscope.path import beneficial_range, quadratic_root, sampled_crossing
from loopscope.report.evaluation_set import EvaluationSet, Single
from loopscope.report.pack import pack
from loopscope.report.tokens import TokenTable
from loopscope.studies.records import GRID_SCALES

CHUNK = 64
"""Questions in a chunk: small enough to decode at once, large enough to compress well."""
STORED = {
    "quadratic_gain": "quadratic_gain",
    "kl_correction": "kl_correction",
    "optimum_low": "fp64_optimum_low",
    "optimum_high": "fp64_optimum_high",
    "boundary_low": "fp64_boundary_low",
    "boundary_high": "fp64_boundary_high",
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
    tokens: TokenTable | None
    path: Single | None
    """φ at the nodes of the stored FP64 paths: [T, N, nodes]."""

    @classmethod
    def of(cls, data: EvaluationSet, tokens: TokenTable | None, *, paths: bool) -> "Details":
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
