r"""Scores of generated answers: by lm-evaluation-harness's filters, by numbers, and by math-verify.

    strict_match       GSM8K: the number after "#### ", compared as lm-evaluation-harness compares it
    flexible_extract   GSM8K: the last thing that looks like a number, likewise
    number             the number that the text ends on, compared as a number
    boxed              MATH: the last \boxed{…}, compared as text without blanks
    math_verify        GSM8K and MATH: math-verify on the whole text (`pip install 'loopscope[answers]'`), else None
    exact              arithmetic: the number of the line "Answer: …" is the result

The filters are scored as they are published, faults included, so that figures can be compared: `flexible_extract` reads
whatever follows the answer, takes a lone comma for a number, and both find that $29.00 is not 29. `number` has none of
these: it reads up to the first sign of a next question, skips what has no digit, and compares values. Give the texts
that begin a next question to `generate(…, stop=…)` (`STOPS`), keep the raw text, and name the scorer with the score.

math-verify interrupts itself by SIGALRM, which only a main thread may ask for. From any other thread, texts are scored
in a process of their own.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal, InvalidOperation
from importlib.util import find_spec
from multiprocessing import get_context

from loopscope.errors import LoopscopeError

STOPS = {
    "gsm8k": ("Question:",),
    "math500": ("Problem:",),
    "arithmetic": ("Problem:",),
}
"""The texts that begin a next question, by task."""

SCORES = {
    "gsm8k": ("number", "strict_match", "flexible_extract", "math_verify"),
    "math500": ("math_verify", "boxed"),
    "arithmetic": ("exact",),
}
"""What each task's answers are scored by; the first that there is counts as accuracy."""

TIMEOUT_S = 5
"""After this many seconds math-verify gives up an expression, which then counts as wrong."""

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_IGNORED = tuple(map(re.compile, (",", r"\$", r"(?s).*#### ", r"\.$")))
_NUMBER = re.compile(r"[-−]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_INVALID = "[invalid]"


def scored(task: str, texts: Sequence[str], references: Sequence[str]) -> list[dict[str, bool | None]]:
    """The scores of each text, by name; `references` are the task's worked solutions.

    Raises:
        LoopscopeError: the task has no answers to score.
    """
    if task not in SCORES:
        raise LoopscopeError(f"answers of {task} cannot be scored: choose from {', '.join(SCORES)}")
    verified: Sequence[bool | None] = [None] * len(texts)
    if "math_verify" in SCORES[task] and has_math_verify():
        verified = math_verify(task, texts, references)
    return [
        {name: found if name == "math_verify" else _SCORERS[name](text, reference) for name in SCORES[task]}
        for text, reference, found in zip(texts, references, verified, strict=True)
    ]


def accuracy(scores: dict[str, bool | None]) -> bool:
    """The first score that there is."""
    return bool(next(score for score in scores.values() if score is not None))


def strict_match(text: str, reference: str) -> bool:
    r"""The first number after "#### " is the reference's.

    >>> strict_match("So 3 + 4 = 7.\n#### 7", "#### 7"), strict_match("The answer is 7.", "#### 7")
    (True, False)
    """
    found = _STRICT.findall(text)
    return _bare(found[0].strip() if found else _INVALID) == _bare(reference)


def flexible_extract(text: str, reference: str) -> bool:
    """The last thing that looks like a number is the reference's.

    >>> flexible_extract("The answer is 7. Question: how many are 2?", "#### 7"), flexible_extract("It is 7", "#### 7")
    (False, True)
    """
    found = _FLEXIBLE.findall(text)
    chosen = next((group for group in found[-1] if group), _INVALID).strip() if found else _INVALID
    return _bare(chosen) == _bare(reference)


def number(text: str, reference: str) -> bool:
    """The number that the text ends on has the value of the reference's; after "####", the first one there.

    >>> number("It costs $29.00, in all.", "#### 29"), number("It is 1,234,", "#### 1234"), number("7 or 8", "#### 7")
    (True, True, False)
    """
    own = text[: min((text.find(stop) for stop in STOPS["gsm8k"] if stop in text), default=len(text))]
    before, mark, after = own.partition("####")
    found = _NUMBER.findall(after if mark else before)
    gold = _NUMBER.findall(reference.rpartition("####")[2])
    return bool(found and gold) and _value(found[0 if mark else -1]) == _value(gold[-1])


def boxed(text: str, reference: str) -> bool:
    r"""The last box of the text holds what the reference's does, blanks aside.

    >>> boxed(r"Thus $\boxed{ \frac{1}{2} }$.", r"$x = \boxed{\frac{1}{2}}$")
    True
    """
    found, gold = last_box(text), last_box(reference)
    return found is not None and gold is not None and "".join(found.split()) == "".join(gold.split())


def last_box(text: str) -> str | None:
    r"""What stands in the last \boxed{…} of a text, braces balanced; None without one.

    >>> last_box(r"\boxed{1} and \boxed{\sqrt{2}}")
    '\\sqrt{2}'
    """
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    open_braces, begin = 1, start + len("\\boxed{")
    for index in range(begin, len(text)):
        open_braces += {"{": 1, "}": -1}.get(text[index], 0)
        if open_braces == 0:
            return text[begin:index]
    return None


def exact(text: str, reference: str) -> bool:
    r"""The line "Answer: …" has the reference's number and nothing after it.

    >>> exact("That leaves 5.\nAnswer: 5", "Answer: 5"), exact("Answer: 5 or 6", "Answer: 5")
    (True, False)
    """
    lines = [line.strip() for line in text.split("\n") if line.strip().startswith("Answer:")]
    return bool(lines) and lines[0] == reference.strip().split("\n")[-1].strip()


def has_math_verify() -> bool:
    """Whether math-verify is installed."""
    return find_spec("math_verify") is not None


def math_verify(task: str, texts: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Whether math-verify finds the answers equal; the reference is its gold, which the order of its arguments needs.

    Raises:
        LoopscopeError: math-verify is not installed.
    """
    if not has_math_verify():
        raise LoopscopeError("math-verify is not installed: pip install 'loopscope[answers]'")
    if threading.current_thread() is threading.main_thread():
        return _verified(task, list(texts), list(references))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_verified, task, list(texts), list(references)).result()


def _verified(task: str, texts: list[str], references: list[str]) -> list[bool]:
    from math_verify import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
        ExprExtractionConfig,
        LatexExtractionConfig,
        parse,
        verify,
    )

    both = [LatexExtractionConfig(), ExprExtractionConfig()]

    def verdict(text: str, reference: str) -> bool:
        if task == "gsm8k":
            gold = parse(reference.rpartition("####")[2].strip(), [ExprExtractionConfig()], parsing_timeout=TIMEOUT_S)
        else:
            gold = parse(f"${last_box(reference) or reference}$", [LatexExtractionConfig()], parsing_timeout=TIMEOUT_S)
        found = parse(text, both, parsing_timeout=TIMEOUT_S)
        return bool(gold) and bool(verify(gold, found, timeout_seconds=TIMEOUT_S))

    return [verdict(text, reference) for text, reference in zip(texts, references, strict=True)]


def _bare(text: str) -> str:
    """As lm-evaluation-harness's exact match sees a text of this task."""
    for pattern in _IGNORED:
        text = pattern.sub("", text)
    return text.lower()


def _value(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", "").replace("$", "").replace("−", "-"))
    except InvalidOperation:
        return None


_SCORERS = {score.__name__: score for score in (strict_match, flexible_extract, number, boxed, exact)}
