"""What the page decodes when a lens is opened: the likeliest tokens at every reference token after every loop.

Only the first questions of a set carry it, because one question has a row per option, token and loop. Vocabulary ids
are numbered anew by how often they occur, so that most of them are small numbers; their texts are stored once.

Shapes: J reference tokens of the questions with a lens, D loops (from 1 on), K candidates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopscope.path import EFFECT_MARGIN
from loopscope.report.details import token_offsets, token_places
from loopscope.report.evaluation_set import EvaluationSet, Single
from loopscope.report.pack import Arrays, Ragged, pack, packed_chunks
from loopscope.studies.records import of_set

LENS_QUESTIONS = 500
"""Questions of a set that carry their lens unless the writer says otherwise: under 10 MB of page for four options."""
CHUNK = 16
"""Questions that are decoded together."""
PROBABILITY_STEPS = 65535
"""Probabilities of candidates are kept in 16 bits; those of references as 32-bit logarithms."""


@dataclass(frozen=True)
class Lens:
    """The lens of one evaluation set, ready to be packed."""

    index: str
    """Packed: texts of the vocabulary, and counts by which questions are ordered."""
    described: dict[str, Any]
    """What the page must know of it at once."""
    columns: Arrays
    """By reference token: [J, …]."""
    offsets: NDArray[np.int64]

    def chunks(self) -> Iterator[str]:
        """Packed chunks of `CHUNK` questions, in order."""
        yield from packed_chunks(len(self.offsets) - 1, CHUNK, {}, (Ragged("counts", self.offsets, self.columns),))


def lens_of(data: EvaluationSet, most: int) -> Lens | None:
    """Read the lens of the first questions of a set; None where the run has none."""
    candidates, rows = data.run.manifest.lens, data.examples["row"].head(most)
    if not candidates or not len(rows):
        return None
    trace = data.run.trace.filter(of_set(data.condition), pl.col("row") <= rows[-1])
    frame = trace.collect().sort("row", "option", "token", "depth")
    first = frame.filter(pl.col("depth") == 1)
    depths = frame.height // first.height

    def by_depth(column: pl.Series, *more: int) -> NDArray[Any]:
        return column.to_numpy().reshape(first.height, depths, *more)

    log_prob, rank = by_depth(frame["log_prob"]), by_depth(frame["rank"]).astype(np.int32)
    gains = np.stack([by_depth(frame["gains"].list.get(index)) for index in range(3)])
    short_gain = overshoots(log_prob, gains)
    ids = by_depth(frame["lens_ids"].explode(), candidates)
    reference = first["token_id"].to_numpy()
    known, counts = np.unique(np.concatenate([ids.ravel(), reference]), return_counts=True)
    vocabulary = known[np.argsort(-counts, kind="stable")]
    numbers = np.empty(int(vocabulary.max()) + 1, np.uint16 if len(vocabulary) <= PROBABILITY_STEPS else np.uint32)
    numbers[vocabulary] = np.arange(len(vocabulary))
    offsets = token_offsets(rows, first)
    right = (rank == 1).astype(np.int32)
    trained = min(data.run.manifest.model.trained_depth or 1, depths)
    order = {
        "lost": right[:, trained - 1] & (right[:, -1] == 0),
        "overshot": (short_gain > 0).sum(axis=1),
    }
    texts = data.run.vocabulary or []
    return Lens(
        index=pack(
            {name: np.add.reduceat(values, offsets[:-1]).astype(np.int32) for name, values in order.items()},
            {"texts": [texts[each] if each < len(texts) else f"#{each}" for each in vocabulary]},
        ),
        described={"questions": len(rows), "depths": depths, "candidates": candidates, "chunk": CHUNK},
        columns=token_places(first) | {
            "reference": numbers[reference],
            "log_prob": log_prob.astype(np.float32),
            "rank": rank,
            "short_gain": short_gain,
            "ids": numbers[ids],
            "probs": np.rint(PROBABILITY_STEPS * by_depth(frame["lens_probs"].explode(), candidates)).astype(np.uint16),
        },
        offsets=offsets,
    )  # fmt: skip


def overshoots(log_prob: NDArray[Any], gains: NDArray[Any]) -> Single:
    """How much a shorter step gains where the full one loses, both by more than the effect margin; 0 elsewhere.

    Args:
        log_prob: of the references after every loop, [J, D].
        gains: at some scales of the step to each loop, NaN where they are not known, [scales, J, D].

    >>> overshoots(np.array([[-1.0, -1.5, -1.2]]), np.array([[[np.nan, 0.25, 0.5]], [[np.nan, 0.125, 0.4]]])).tolist()
    [[0.0, 0.25, 0.0]]
    """
    step = np.diff(log_prob.astype(np.float64), axis=1, prepend=np.nan)
    best = np.where(np.isnan(gains), -np.inf, gains).max(axis=0)
    return np.where((step < -EFFECT_MARGIN) & (best > EFFECT_MARGIN), best, 0.0).astype(np.float32)
