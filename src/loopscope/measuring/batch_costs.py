"""What batches of any size take, fitted to a few that were timed, and how far such a fit is off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loopscope.measuring.layout import Question, padded_tokens, run_tokens
from loopscope.measuring.settings import BatchPolicy

Floats = npt.NDArray[np.float64]
Terms = tuple[float, float, float, float]

WHOLE = (1, 0, 2, 3)
"""Terms that batches are fitted by, tokens first: those of one size cannot tell what a token takes from what a batch
does, and others may be larger."""
QUICK = (1, 0, 3)
"""Those at level quick, where scored tokens take little: options have few, and their cost would fit what is uneven."""
TOKENS, SCORED = (1,), (2, 0)
"""Where only short parts of batches were timed: what does not grow with a part grows with the whole. At level full the
readout of scored tokens takes most of the time, padding little, and a search of many rounds something for a batch."""


class BatchSize(NamedTuple):
    """What decides how long a batch takes; `unpadded` tokens run where it is not padded."""

    rows: int
    width: int
    scored: int = 0
    unpadded: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens that run, padding included."""
        return self.rows * self.width if self.unpadded is None else self.unpadded

    @property
    def terms(self) -> Terms:
        """What `Fit` finds a cost for: a batch, its padded tokens, those that are scored, the pairs of its rows."""
        return 1.0, self.tokens, self.scored, self.tokens * self.width

    @classmethod
    def of(cls, batch: Sequence[Question], policy: BatchPolicy | None = None) -> BatchSize:
        """That of some questions together, padded where the policy does not say otherwise."""
        width = max(question.width for question in batch)
        scored = sum(question.example.prediction_count for question in batch)
        unpadded = None if policy is None or policy.padding != "none" else run_tokens(batch, policy)
        return cls(padded_tokens(batch) // width, width, scored, unpadded)


class AnswerSize(NamedTuple):
    """What decides how long generating the own answers of a batch takes: one token of every row in each step."""

    rows: int
    prompt: int
    steps: int

    @property
    def terms(self) -> Terms:
        """What `Fit` finds a cost for: a step, a generated token, a padded token of the prompts."""
        return self.steps, self.steps * self.rows, self.rows * self.prompt, 0.0

    @classmethod
    def of(cls, batch: Sequence[Question]) -> AnswerSize | BatchSize:
        """An own option takes a pass to the trained depth, an own solution a step for each of its tokens."""
        if batch[0].example.answer is not None:
            return BatchSize.of(batch)
        given = [question.example.sequences[0] for question in batch]
        prompts, steps = [s.positions[0] + 1 for s in given], [len(s.targets) for s in given]
        return cls(len(given), max(prompts), max(steps))


class GroupSize(NamedTuple):
    """Batches that were timed together."""

    sizes: Sequence[BatchSize | AnswerSize]

    @property
    def terms(self) -> Terms:
        """The sums of theirs."""
        batch, token, scored, pair = (float(sum(each)) for each in zip(*(s.terms for s in self.sizes), strict=True))
        return batch, token, scored, pair


Size = BatchSize | AnswerSize | GroupSize


class Timed(NamedTuple):
    """Sizes of what was timed, and how long each took."""

    sizes: list[Size]
    seconds: list[float]


@dataclass(frozen=True)
class Fit:
    """Seconds for a batch, a padded token of it, a scored one, and a pair of tokens of a row; none of them negative.

    Of own answers: for a step, for a generated token, for a padded token of the prompts.
    """

    batch: float
    token: float
    scored: float
    pair: float

    @classmethod
    def of(cls, sizes: Sequence[Size], seconds: Sequence[float], allowed: Sequence[int] = WHOLE, spare: int = 1) -> Fit:
        """Least squares of relative errors over the terms that come out positive, scaled to what all took together.

        There are fewer terms than timings by as many as are to `spare`: as many would fit whatever was timed.

        >>> Fit.of([BatchSize(1, 10), BatchSize(2, 10), BatchSize(4, 10)], [1.1, 1.2, 1.4])
        Fit(batch=1.0, token=0.01, scored=0.0, pair=0.0)
        """
        terms, times = _terms(sizes), np.asarray(seconds)
        weighted = terms / times[:, None]
        # A single timing tells a rate, and that of tokens is what other batches share with it.
        found, least = np.zeros(4), 0.0 if len(times) == 1 else np.inf
        found[allowed[0]] = times.sum() / terms[:, allowed[0]].sum()
        most = min(len(allowed), max(1, len(times) - spare))
        for chosen in chain.from_iterable(combinations(allowed, count) for count in range(1, most + 1)):
            solved, *_ = np.linalg.lstsq(weighted[:, chosen], np.ones(len(times)), rcond=None)
            error = float(np.square(weighted[:, chosen] @ solved - 1).sum())
            # A term must earn its place.
            if (solved > 0).all() and error < 0.8 * least - 1e-12:
                found, least = np.zeros(4), error
                found[list(chosen)] = solved
        found *= times.sum() / (terms @ found).sum()  # relative errors weigh the short ones; a total must not
        return cls(*(float(f"{value:.12g}") for value in found))

    def seconds(self, sizes: Sequence[Size]) -> Floats:
        """What batches of these sizes take."""
        found: Floats = (_terms(sizes) * np.array([self.batch, self.token, self.scored, self.pair])).sum(axis=1)
        return found


def _terms(sizes: Sequence[Size]) -> Floats:
    return np.array([size.terms for size in sizes], dtype=np.float64).reshape(-1, 4)


def left_out_error(parts: Sequence[Timed], allowed: Sequence[Sequence[int]] = (WHOLE, WHOLE), kept: int = 0) -> float:
    """Root mean square of the relative error of each timing, predicted from the others, all parts together.

    The last `kept` ones are never left out: nothing else tells what they do. `allowed` are the terms of each part. Of
    two timings one is left, from which nothing can be told but a rate: not a number.
    """
    count = len(parts[0].seconds)
    if count < 3:
        return float("nan")
    errors = []
    for left in range(count - kept):
        others = [i for i in range(count) if i != left]
        foretold = took = 0.0
        for (sizes, seconds), terms in zip(parts, allowed, strict=False):
            fit = Fit.of([sizes[i] for i in others], [seconds[i] for i in others], terms)
            foretold, took = foretold + float(fit.seconds([sizes[left]])[0]), took + seconds[left]
        errors.append(foretold / took - 1)
    return float(np.sqrt(np.mean(np.square(errors))))


def spread(weights: Sequence[float]) -> Iterator[int]:
    """All places, in an order in which any beginning stands for the whole: its middle by weight, those of its halves, …

    >>> list(spread([1, 1, 1, 1, 1])), list(spread([9, 1, 1, 1]))
    ([2, 1, 3, 0, 4], [0, 2, 1, 3])
    """
    ends = np.cumsum(weights) / np.sum(weights)
    seen: set[int] = set()
    parts = 2
    while len(seen) < len(ends):
        fine = parts > 8 * len(ends)  # what is left weighs little
        middles = range(len(ends)) if fine else np.searchsorted(ends, np.arange(1, parts, 2) / parts).tolist()
        for place in middles:
            if place not in seen:
                seen.add(place)
                yield place
        parts *= 2
