"""What policies are compared on: the reference positions of a task, and a recorded trace of them.

Positions stand in the order of question, option and token; loops are 1 … T. The utility of a question is the mean log
probability of its reference tokens; of a question with options, s_right − log Σ_k exp s_k of their mean scores s_k.

Shapes: R reference positions, T loops, S sequences (options of all questions), Q questions, J scales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopscope.control.policies import SIGNALS, Direction
from loopscope.errors import LoopscopeError, setting

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SCALES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The scales at which a trace knows the gain of an update."""
_GAINS = ("gain_25", "gain_50", "gain_75")
_MEASURED = ("log_prob", "v_reference", *_GAINS)
_NODES = 8
"""Neighbouring points of a grid through which a polynomial is laid."""


def interpolation_weights(scale: Any, nodes: Sequence[float] = SCALES) -> list[Any]:
    """The weights of the recorded points for φ at any scale: the polynomial through all of them.

    >>> interpolation_weights(0.25)
    [0.0, 1.0, 0.0, 0.0, 0.0]
    """
    return [prod((scale - other) / (node - other) for other in nodes if other != node) + 0.0 for node in nodes]


class Line(NamedTuple):
    """The straight line of logits z_t + omega · u that a scaled readout moves on; see `Policy.direction`."""

    direction: Direction
    reference: int | None
    depth: int


class LineValues(NamedTuple):
    """The log probability of the reference along a line, at each omega of an even grid."""

    omega_J: Floats
    log_prob_RJ: Floats

    def at(self, omega: Any) -> Floats:
        """At one omega for all or one for each position, by the polynomial through the eight nearest points."""
        omega_R = np.broadcast_to(np.asarray(omega, dtype=np.float64), len(self.log_prob_RJ))
        points, count = len(self.omega_J), min(_NODES, len(self.omega_J))
        place_R = (omega_R - self.omega_J[0]) / (self.omega_J[1] - self.omega_J[0])
        if not ((place_R > -1e-6) & (place_R < points - 1 + 1e-6)).all():
            raise LoopscopeError(f"omega must be from {self.omega_J[0]:g} to {self.omega_J[-1]:g}, as was measured")
        first_R = (np.floor(place_R).astype(np.int64) - count // 2 + 1).clip(0, points - count)
        weights_RN = np.stack(interpolation_weights(place_R - first_R, range(count)), axis=1)
        near_RN = np.take_along_axis(self.log_prob_RJ, first_R[:, None] + np.arange(count), axis=1)
        found: Floats = (weights_RN * near_RN).sum(axis=1)
        return found


@dataclass(frozen=True, kw_only=True)
class Positions:
    """The reference positions of a task's questions.

    Attributes:
        question_R: which question each position belongs to, 0 … Q − 1.
        sequence_R: which sequence, 0 … S − 1.
        target_R: the reference tokens.
        question_S: which question each sequence belongs to.
        right_S: whether it is the right option; all True for solutions.
        ids: the identifiers of the questions, [Q].
        is_options: whether questions have options.
    """

    question_R: Ints
    sequence_R: Ints
    target_R: Ints
    question_S: Ints
    right_S: NDArray[np.bool_]
    ids: tuple[str, ...]
    is_options: bool = False

    def __len__(self) -> int:
        return len(self.question_R)

    @property
    def questions(self) -> int:
        """Q."""
        return len(self.ids)

    def mean(self, values_R: NDArray[Any]) -> Floats:
        """The mean over the tokens of every sequence, then over the sequences of every question, [Q]."""
        return np.bincount(self.question_S, self._scores(values_R)) / np.bincount(self.question_S)

    def utility(self, log_prob_R: Floats) -> Floats:
        """The utility of every question, from the log probabilities of its tokens, [Q]."""
        scores_S = self._scores(log_prob_R)
        if not self.is_options:
            return scores_S  # one sequence to a question, in order
        total_Q = np.bincount(self.question_S, np.exp(scores_S))
        return scores_S[self.right_S] - np.log(total_Q)

    def accuracy(self, log_prob_R: Floats, correct_R: NDArray[Any]) -> Floats:
        """Whether the right option has the best score, the first of equals; for solutions the share of right tokens."""
        if not self.is_options:
            return self.mean(correct_R)
        scores_S = self._scores(log_prob_R)
        order = np.lexsort((np.arange(len(scores_S)), -scores_S, self.question_S))
        best = order[np.unique(self.question_S[order], return_index=True)[1]]
        return self.right_S[best].astype(np.float64)

    def _scores(self, values_R: NDArray[Any]) -> Floats:
        return np.bincount(self.sequence_R, values_R) / np.bincount(self.sequence_R)


@dataclass(frozen=True, kw_only=True)
class Trace(Positions):
    """The trace of one task.

    Attributes:
        columns: [R, T] each; NaN where there is nothing.
        lines: what is known beyond the loops' own logits.
    """

    columns: Mapping[str, NDArray[Any]]
    lines: Mapping[Line, LineValues] = field(default_factory=dict)

    @classmethod
    def of(cls, frame: pl.DataFrame, right_option: Mapping[int, int] | None = None) -> Trace:
        """From rows of the table `trace` of one task; `right_option` by row of the question where there are options.

        Raises:
            LoopscopeError: some position does not have every loop.
        """
        loops = 0 if not frame.height else int(frame["depth"].max())  # type: ignore[arg-type]
        if not loops:
            raise LoopscopeError(f"these runs hold no trace: measure them with {setting('trace', True)}")
        frame = frame.sort("row", "option", "token", "depth")
        depths_RT = frame["depth"].to_numpy()
        if len(depths_RT) % loops or not (depths_RT.reshape(-1, loops) == np.arange(1, loops + 1)).all():
            raise LoopscopeError("this trace does not have every loop of every position: measure it again")
        if "gains" in frame.columns:
            frame = frame.with_columns(frame["gains"].list.get(at).alias(name) for at, name in enumerate(_GAINS))
        columns = {
            name: frame[name].fill_null(-1 if name == "top_id" else float("nan")).to_numpy().reshape(-1, loops)
            for name in (*SIGNALS, *_MEASURED)
            if name in frame.columns
        }
        positions = frame.gather_every(loops).with_columns(
            question=pl.col("row").rle_id(), sequence=pl.struct("row", "option").rle_id()
        )
        sequences, questions = (
            positions.unique(name, keep="first", maintain_order=True) for name in ("sequence", "question")
        )
        right = sequences["option"] if right_option is None else sequences["row"].replace_strict(right_option)
        return cls(
            columns=columns,
            question_R=positions["question"].to_numpy().astype(np.int64),
            sequence_R=positions["sequence"].to_numpy().astype(np.int64),
            target_R=positions["token_id"].to_numpy().astype(np.int64),
            question_S=sequences["question"].to_numpy().astype(np.int64),
            right_S=(sequences["option"] == right).to_numpy(),
            ids=tuple(questions["example_id"]),
            is_options=right_option is not None,
        )

    @property
    def loops(self) -> int:
        """T."""
        return int(self.columns["log_prob"].shape[1])

    def up_to(self, loops: int) -> Trace:
        """The first loops of it."""
        return replace(self, columns={name: values_RT[:, :loops] for name, values_RT in self.columns.items()})

    def signal(self, name: str, depth: int) -> NDArray[Any]:
        """A signal of every position after a loop."""
        if name not in self.columns or name in _MEASURED:
            raise LoopscopeError(f"there is no signal {name!r} in this trace: choose from {', '.join(SIGNALS)}")
        return self.columns[name][:, depth - 1]

    def has_scales(self, depth: int) -> bool:
        """Whether the gains inside the step to this loop are there."""
        return 1 < depth <= self.loops and all(
            name in self.columns and not np.isnan(self.columns[name][:, depth - 1]).any() for name in _GAINS
        )

    def log_prob(self, depth: int) -> Floats:
        """The log probability of the reference after a loop, [R]."""
        return self.columns["log_prob"][:, depth - 1].astype(np.float64)

    def scaled(self, depth: int) -> Floats:
        """The same of H_{t−1} + α·D_t at the five scales of the step to loop t, [R, 5]."""
        if not self.has_scales(depth):
            raise LoopscopeError(
                f"this trace has no gains inside the step {depth - 1}→{depth}: measure it with "
                f"{setting('transitions', depth - 1)} at level grid"
            )
        start = self.log_prob(depth - 1)
        inside = [start + self.columns[name][:, depth - 1] for name in _GAINS]
        return np.stack([start, *inside, self.log_prob(depth)], axis=1)


def halves(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Every second question to train on, the others to test on: for a trace of a single split."""
    rows = frame["row"].unique().sort()
    train = frame["row"].is_in(rows.gather_every(2).implode())
    return frame.filter(train), frame.filter(~train)
