"""The worked solution: one short line per operation, then the answer line, in one of five styles.

The question asks for the style (`REQUESTS`; none for the plain style with units), so that a reader of the
question knows how the solution will look; within a style the words of a line still vary.

Wrong answers that a hurried person gives: the options of `arithmetic-mc`.

Each slip changes the computation in one place and carries the change through to the end:
a wrong operation, a step left out, operands swapped, a carry forgotten, off by one, or stopping early.
"""

from __future__ import annotations

import re

from loopscope.tasks.arithmetic.problem import LITERAL, Chooser, Step, apply

REQUESTS: dict[str, tuple[str, ...]] = {
    "unit": ("", "", "Give the unit each time.", "Write the units, please."),
    "bare": ("Write only the calculations.", "Just show the sums.", "Use no words in the steps."),
    "numbered": ("Number the steps.", "Count your steps.", "Go step by step."),
    "labelled": ("Label each step.", "Put a short label on each line.", "Say what each line is."),
    "sentences": ("Explain each step.", "Explain it in sentences.", "Answer in full sentences first."),
}
STYLES = tuple(REQUESTS)

LABELS: dict[str, tuple[str, ...]] = {
    "start": ("start", "at first"),
    "extra": ("extra", "added"),
    "spent": ("gone", "taken"),
    "add": ("now", "with these"),
    "sub": ("left", "still there"),
    "mul": ("grown", "times"),
    "div": ("one share", "part"),
    "price": ("money", "sale"),
    "to": ("{B}", "{B} has"),
    "need": ("missing", "to go"),
    "together": ("together", "in all"),
    "gap": ("difference", "gap"),
    "per": ("each", "one share"),
    "bags": ("filled", "needed"),
    "cost": ("dollars", "worth"),
}

SENTENCES: dict[str, tuple[str, ...]] = {
    "start": ("At first there are {e} {u}.", "It begins with {e} {u}.", "To start with, that is {e} {u}."),
    "extra": ("What comes in is {e} {u}.", "The extra part is {e} {u}.", "That adds {e} {u}."),
    "spent": ("What goes out is {e} {u}.", "The lost part is {e} {u}.", "That takes away {e} {u}."),
    "add": ("Now there are {e} {u}.", "That makes {e} {u}.", "With these there are {e} {u}."),
    "sub": ("That leaves {e} {u}.", "Still there are {e} {u}.", "Now only {e} {u} are left."),
    "mul": ("The number grows to {e} {u}.", "So many times that is {e} {u}.", "Now it is {e} {u}."),
    "div": ("One part is {e} {u}.", "After the split it is {e} {u}.", "The share is {e} {u}."),
    "price": ("The sale brings {e} {u}.", "All of them bring {e} {u}."),
    "to": ("{B} has {e} {u}.", "So {B} has {e} {u}."),
    "need": ("Missing are {e} {u}.", "Still to come are {e} {u}."),
    "together": ("Together that is {e} {u}.", "In all there are {e} {u}."),
    "gap": ("The difference is {e} {u}.", "The gap is {e} {u}."),
    "per": ("Each one gets {e} {u}.", "That is {e} {u} each time."),
    "bags": ("That fills {e} {u}.", "It takes {e} {u}."),
    "cost": ("The worth is {e} {u}.", "In money that is {e} {u}."),
}

ANSWER = "Answer:"
_ANSWER = re.compile(r"Answer:[ \t]*(-?\d+)")


def render(steps: list[Step], style: str, choose: Chooser) -> str:
    """The solution's text: a line for each step, then `Answer: n`; no newline at the end."""
    lines = []
    for number, step in enumerate(steps, 1):
        equation = step.equation
        if style == "bare":
            lines.append(equation)
        elif style == "unit":
            lines.append(f"{equation} {step.unit}")
        elif style == "numbered":
            lines.append(f"{number}. {equation}")
        elif style == "labelled":
            label = choose.of(LABELS[step.kind])
            lines.append(f"{label.replace('{B}', step.owner)}: {equation}")
        else:
            sentence = choose.of(SENTENCES[step.kind])
            lines.append(sentence.replace("{B}", step.owner).replace("{e}", equation).replace("{u}", step.unit))
    lines.append(f"{ANSWER} {steps[-1].result}")
    return "\n".join(lines)


def answer_of(text: str) -> int | None:
    r"""The final answer in a solution or a generation, or None where there is none.

    The last `Answer: n` counts; a number that a generation only passes on its way does not.

    >>> answer_of("14 + 9 = 23 shells\nAnswer: 23")
    23
    >>> answer_of("14 + 9 = 23") is None
    True
    """
    found = _ANSWER.findall(text)
    return int(found[-1]) if found else None


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
