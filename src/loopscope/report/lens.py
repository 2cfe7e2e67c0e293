"""What the page decodes when a lens is opened: what the model would say at every reference token after every loop.

Only the first questions of a set carry it, because one question has a row per option, token and loop. Vocabulary ids
are numbered anew by how often they occur, so that most of them are small numbers; their texts stand beside them once.

Shapes: N questions with a lens, J reference tokens of them, D loops (from 1 on), K candidates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopscope.path import EFFECT_MARGIN
from loopscope.report.details import text_spans
from loopscope.report.evaluation_set import EvaluationSet, Single
from loopscope.report.pack import pack
from loopscope.studies.records import of_set

LENS_QUESTIONS = 500
"""Questions of a set that carry their lens unless the writer says otherwise: under 10 MB of page for four options."""
CHUNK = 16
"""Questions that are decoded together."""
PROBABILITY_STEPS = 65535
"""Probabilities of candidates are kept in 16 bits; those of references as 32-bit logarithms."""
_COLUMNS = (
    *("row", "option", "token", "depth", "token_id", "text_start", "text_end", "log_prob", "rank"),
    *("gains", "lens_ids", "lens_probs"),
)


@dataclass(frozen=True)
class Lens:
    """The lens of one evaluation set; `index` and `chunks` are what the page stores of it."""

    data: EvaluationSet
    questions: int
    """How many carry it: the first ones."""
    depths: int
    candidates: int
    offsets: NDArray[np.int64]
    """Where each question's tokens begin, and the end: [N + 1]."""
    option: NDArray[np.uint8]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    reference: NDArray[np.int32]
    """Vocabulary id of each reference token: [J]."""
    log_prob: Single
    """[J, D]."""
    rank: NDArray[np.int32]
    """[J, D]."""
    short_gain: Single
    """The largest gain of a shorter step where the full one overshot, else 0: [J, D]."""
    ids: NDArray[np.int32]
    """[J, D, K]."""
    probs: Single
    """[J, D, K]."""

    @classmethod
    def of(cls, data: EvaluationSet, most: int) -> "Lens | None":
        """Read the lens of the first questions of a set; None where the run has none."""
        candidates = data.run.manifest.lens
        rows = data.examples["row"].head(most)
        if not candidates or not len(rows):
            return None
        frame = (
            data.run.trace.filter(of_set(data.condition), pl.col("row") <= rows[-1])
            .select(*_COLUMNS)
            .collect()
            .sort("row", "option", "token", "depth")
        )
        depths = int(frame["depth"].max())  # type: ignore[arg-type]
        first = frame.filter(pl.col("depth") == 1)
        shape = (first.height, depths)
        start, end = text_spans(data, first)
        log_prob = frame["log_prob"].to_numpy().reshape(shape)
        gains = np.stack([frame["gains"].list.get(index).to_numpy().reshape(shape) for index in range(3)])
        return cls(
            data,
            len(rows),
            depths,
            candidates,
            np.searchsorted(first["row"].to_numpy(), np.append(rows.to_numpy(), rows[-1] + 1)),
            first["option"].to_numpy().astype(np.uint8),
            start,
            end,
            first["token_id"].to_numpy().astype(np.int32),
            log_prob.astype(np.float32),
            frame["rank"].to_numpy().reshape(shape).astype(np.int32),
            overshoots(log_prob, gains),
            frame["lens_ids"].explode().to_numpy().reshape(*shape, candidates).astype(np.int32),
            frame["lens_probs"].explode().to_numpy().reshape(*shape, candidates).astype(np.float32),
        )

    @cached_property
    def vocabulary(self) -> NDArray[np.int32]:
        """The ids that occur, the most frequent first."""
        ids, counts = np.unique(np.concatenate([self.ids.ravel(), self.reference]), return_counts=True)
        return ids[np.argsort(-counts, kind="stable")]

    def described(self) -> dict[str, Any]:
        """What the page must know of it at once."""
        return {"questions": self.questions, "depths": self.depths, "candidates": self.candidates, "chunk": CHUNK}

    def index(self) -> str:
        """Texts of the vocabulary, and counts by which questions are ordered; packed."""
        texts = self.data.run.vocabulary or []
        right = (self.rank == 1).astype(np.uint8)
        trained = self.data.run.manifest.model.trained_depth or 1
        lost = right[:, min(trained, self.depths) - 1] & (right[:, -1] == 0)
        return pack(
            {
                "right": np.add.reduceat(right, self.offsets[:-1], axis=0, dtype=np.int32),
                "lost": np.add.reduceat(lost, self.offsets[:-1], dtype=np.int32),
                "overshot": np.add.reduceat((self.short_gain > 0).sum(axis=1), self.offsets[:-1]).astype(np.int32),
            },
            {"texts": [texts[each] if each < len(texts) else f"#{each}" for each in self.vocabulary]},
        )

    def chunks(self) -> Iterator[str]:
        """Packed chunks of `CHUNK` questions, in order."""
        numbers = np.empty(int(self.vocabulary.max()) + 1, np.int32)
        numbers[self.vocabulary] = np.arange(len(self.vocabulary))
        small = np.uint16 if len(self.vocabulary) <= np.iinfo(np.uint16).max else np.uint32
        for first in range(0, self.questions, CHUNK):
            stop = min(first + CHUNK, self.questions)
            inside = slice(int(self.offsets[first]), int(self.offsets[stop]))
            arrays: dict[str, NDArray[Any]] = {
                "counts": np.diff(self.offsets[first : stop + 1]).astype(np.int32),
                "option": self.option[inside],
                "start": self.start[inside],
                "end": self.end[inside],
                "reference": numbers[self.reference[inside]].astype(small),
                "log_prob": self.log_prob[inside],
                "rank": self.rank[inside],
                "short_gain": self.short_gain[inside],
                # Candidates of one rank side by side: the likeliest repeat from loop to loop.
                "ids": np.moveaxis(numbers[self.ids[inside]], 2, 0).astype(small),
                "probs": np.moveaxis(np.rint(PROBABILITY_STEPS * self.probs[inside]), 2, 0).astype(np.uint16),
            }
            yield pack(arrays)


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
