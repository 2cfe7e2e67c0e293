"""What a generated problem is: its text, its computation as a small graph of steps, its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

LITERAL = -1
"""In place of a step's index: the operand is a number of the text."""


class Step(NamedTuple):
    """One operation `left op right = result`; operands are numbers of the text or results of earlier steps."""

    left: int
    op: str
    right: int
    result: int
    left_from: int
    right_from: int
    kind: str
    owner: str
    unit: str

    @property
    def equation(self) -> str:
        """The computation as it stands in a worked solution.

        >>> Step(14, "+", 9, 23, LITERAL, LITERAL, "add", "Mia", "shells").equation
        '14 + 9 = 23'
        """
        return f"{self.left} {self.op} {self.right} = {self.result}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A word problem with its worked solution; `story` is all of it but the request for a style."""

    story: str
    request: str
    solution: str
    steps: tuple[Step, ...]
    family: str
    remark: bool

    @property
    def answer(self) -> int:
        """The result of the last step."""
        return self.steps[-1].result

    @property
    def operations(self) -> int:
        """The difficulty: how many operations lead to the answer."""
        return len(self.steps)

    @property
    def question(self) -> str:
        """The story and, where there is one, the request for a style of solution."""
        return f"{self.story} {self.request}" if self.request else self.story


def apply(op: str, left: int, right: int) -> int | None:
    """The result of one operation, or None where it is no whole number.

    >>> apply("*", 6, 7), apply("/", 7, 2)
    (42, None)
    """
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    if op == "*":
        return left * right
    return left // right if right != 0 and left % right == 0 else None
