"""Wrong answers that a hurried person gives: the options of `arithmetic-mc`.

Each slip changes the computation in one place and carries the change through to the end:
a wrong operation, a step left out, operands swapped, a carry forgotten, off by one, or stopping early.
"""

from __future__ import annotations

from loopscope.tasks.arithmetic.problem import LITERAL, Step, apply
from loopscope.tasks.arithmetic.rng import Chooser

_SWAPS = {"+": "-*", "-": "+", "*": "+", "/": "*-"}


def replay(steps: tuple[Step, ...], changed: int, result: int) -> int | None:
    """The final result when step `changed` comes out as `result`; None where a later division leaves a rest."""
    results: list[int] = []
    for index, step in enumerate(steps):
        if index == changed:
            results.append(result)
            continue
        left = step.left if step.left_from == LITERAL else results[step.left_from]
        right = step.right if step.right_from == LITERAL else results[step.right_from]
        value = apply(step.op, left, right)
        if value is None:
            return None
        results.append(value)
    return results[-1]


def slips(steps: tuple[Step, ...]) -> list[list[int]]:
    """Wrong final answers by kind of slip (kinds may be empty): whole, positive, below 10000, never the answer."""
    answer = steps[-1].result
    kinds: list[list[int | None]] = [[], [], [], [], []]
    for index, step in enumerate(steps):
        for op in _SWAPS[step.op]:
            wrong = apply(op, step.left, step.right)
            if wrong is not None:
                kinds[0].append(replay(steps, index, wrong))
        kinds[1].append(replay(steps, index, step.left))
        if step.right_from != LITERAL:
            kinds[1].append(replay(steps, index, step.right))
        if step.op == "-":
            kinds[2].append(replay(steps, index, _digits_swapped(step.left, step.right)))
        if step.op in "+-*":
            kinds[3] += [replay(steps, index, step.result - 10), replay(steps, index, step.result + 10)]
        kinds[3] += [replay(steps, index, step.result - 1), replay(steps, index, step.result + 1)]
        kinds[4].append(step.result)
    return [[wrong for wrong in kind if wrong is not None and 0 < wrong < 10000 and wrong != answer] for kind in kinds]


def _digits_swapped(left: int, right: int) -> int:
    """Column-wise subtraction that always takes the smaller digit from the larger.

    >>> _digits_swapped(52, 37)
    25
    """
    return int(
        "".join(str(abs(int(a) - int(b))) for a, b in zip(str(left), str(right).zfill(len(str(left))), strict=True))
    )


def wrong_answers(steps: tuple[Step, ...], choose: Chooser, count: int = 3) -> list[int]:
    """`count` different wrong answers, from different kinds of slip as far as there are any."""
    kinds = slips(steps)
    chosen: list[int] = []
    while len(chosen) < count:
        open_kinds = [index for index in choose.order(len(kinds)) if set(kinds[index]) - set(chosen)]
        if not open_kinds:
            break
        for index in open_kinds[: count - len(chosen)]:
            left = [wrong for wrong in kinds[index] if wrong not in chosen]
            if left:
                chosen.append(choose.of(left))
    answer, distance = steps[-1].result, 2
    while len(chosen) < count:
        if answer + distance not in chosen:
            chosen.append(answer + distance)
        distance += 1
    return chosen
