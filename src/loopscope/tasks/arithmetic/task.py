"""The tasks `arithmetic` (worked solutions) and `arithmetic-mc` (four options).

Both ask the same problems. `arithmetic` scores the worked solution after `Solution:`; `arithmetic-mc` scores the
bare answers after `Answer:`, without showing the options, on their joint utility. Context and continuation
are encoded as one text (`joint` in `tasks/encoding.py`).

Problem number i of a split is addressable, so that no file of problems is ever needed: row i tries stories from its own
stream until the wording of one belongs to the split. How many operations it has follows from i, so that any first rows
hold every difficulty alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import MappingProxyType

from loopscope.errors import LoopscopeError
from loopscope.tasks.arithmetic.problem import ANSWER, SPLITS, Chooser, Problem, key, split_of, wrong_answers
from loopscope.tasks.arithmetic.story import FEWEST, MOST, tell
from loopscope.tasks.encoding import Encoder, Example, Kind, Row, Scalar, encode_row

SEED = 20260904
"""The seed of the published rows."""


def problem(split: str, index: int, *, seed: int = SEED, operations: int | None = None) -> Problem:
    """Row `index` of a split, with 2 + index mod 5 operations unless told otherwise.

    >>> first = problem("test", 0)
    >>> first.operations, first == problem("test", 0)
    (2, True)
    """
    count = FEWEST + index % (MOST - FEWEST + 1) if operations is None else operations
    choose = Chooser(key("arithmetic", seed, split, index))
    while True:
        candidate = tell(choose, count)
        if split_of(candidate.story) == split:
            return candidate


SIZES = {"train": 100_000, "validation": 2_000, "test": 5_000}
"""How many rows a split has when no limit is given; the generator itself does not end."""


def row_numbers(name: str, split: str, limit: int | None, ids: Iterable[str] | None) -> Iterable[int]:
    """The rows of a generated task that were asked for, by number; what there is none of is refused."""
    if split not in SPLITS:
        raise LoopscopeError(f"{name} has no split {split!r}: choose one of {', '.join(SPLITS)}")
    if ids is None:
        return range(SIZES[split] if limit is None else limit)
    prefix = f"{split}-"
    wanted = []
    for text in ids:
        number = text.removeprefix(prefix)
        if not text.startswith(prefix) or not number.isdecimal() or len(number) > 15:
            raise LoopscopeError(f"{name} has no row {text!r}: ids of this split look like {prefix}17")
        wanted.append(int(number))
    return wanted if limit is None else wanted[:limit]


def solution_context(question: str) -> str:
    """What stands before a worked solution."""
    return f"Problem: {question}\nSolution:\n"


def answer_context(story: str) -> str:
    """What stands before a bare answer."""
    return f"Problem: {story}\n{ANSWER}"


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    seed: int = SEED

    def problem(self, split: str, index: int) -> Problem:
        """The problem behind row `index`."""
        return problem(split, index, seed=self.seed)


def _metadata(made: Problem) -> MappingProxyType[str, Scalar]:
    return MappingProxyType(
        {"difficulty": made.operations, "family": made.family, "remark": made.remark, "result": made.answer}
    )


@dataclass(frozen=True, slots=True)
class Arithmetic(_Arithmetic):
    """Word problems of two to six operations with worked solutions."""

    name: str = "arithmetic"
    kind: Kind = "solution"

    def rows(self, split: str = "test", limit: int | None = None, ids: Iterable[str] | None = None) -> Iterator[Row]:
        """The problems of a split, with their solutions as the one continuation."""
        for index in row_numbers(self.name, split, limit, ids):
            made = self.problem(split, index)
            yield Row(
                f"{split}-{index}", index, solution_context(made.question), (made.solution,), None, _metadata(made)
            )

    def encode(
        self, tokenizer: Encoder, split: str = "test", limit: int | None = None, ids: Iterable[str] | None = None
    ) -> Iterator[Example]:
        """The same rows, encoded."""
        return (encode_row(tokenizer, row) for row in self.rows(split, limit, ids))


@dataclass(frozen=True, slots=True)
class ArithmeticChoice(_Arithmetic):
    """The same problems with four answers to choose from; the wrong ones come from typical slips."""

    name: str = "arithmetic-mc"
    kind: Kind = "options"

    def rows(self, split: str = "test", limit: int | None = None, ids: Iterable[str] | None = None) -> Iterator[Row]:
        """The problems of a split, with four answers; in every four rows each place is right once."""
        for index in row_numbers(self.name, split, limit, ids):
            made = self.problem(split, index)
            places = Chooser(key("arithmetic-mc places", self.seed, split, index // 4)).order(4)
            answer = places[index % 4]
            options = wrong_answers(made.steps, Chooser(key("arithmetic-mc", self.seed, split, index)))
            options.insert(answer, made.answer)
            texts = tuple(f" {option}" for option in options)
            yield Row(f"{split}-{index}", index, answer_context(made.story), texts, answer, _metadata(made))

    def encode(
        self, tokenizer: Encoder, split: str = "test", limit: int | None = None, ids: Iterable[str] | None = None
    ) -> Iterator[Example]:
        """The same rows, encoded."""
        return (encode_row(tokenizer, row) for row in self.rows(split, limit, ids))
