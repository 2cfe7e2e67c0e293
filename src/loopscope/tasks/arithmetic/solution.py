"""The worked solution: one short line per operation, then the answer line, in one of five styles.

The question asks for the style (`REQUESTS`; none for the plain style with units), so that a reader of the
question knows how the solution will look; within a style the words of a line still vary.
"""

from __future__ import annotations

import re

from loopscope.tasks.arithmetic.problem import Step
from loopscope.tasks.arithmetic.rng import Chooser

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
