"""Scores of answers: against lm-evaluation-harness's own filters, math-verify, and texts for the known faults."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from loopscope.control import answers
from loopscope.errors import LoopscopeError

GOLD = "He buys 3 * 4 = <<3*4=12>>12 pens.\nThat costs 12 * 2 = 24.\n#### 1,224"
TEXTS = [
    "12 pens.\n#### 1224",
    "12 pens.\n#### 1,224.",
    "The answer is $1,224.",
    "The answer is 1224.00",
    "#### 1224\n\nQuestion: Ann has 5 pens. How many?",
    "1224, right?",
    "It is 1224 ,",
    "#### -1224",
    "no idea",
    "",
    "#### \n1224",
    "so 1,224 it is.",
    "#### 1224 #### 7",
]


def by_harness(text, gold):
    """The two filters and the metric of the harness's own gsm8k task."""
    metrics = pytest.importorskip("lm_eval.api.metrics")
    from lm_eval.filters.extraction import RegexFilter

    filters = {
        "strict_match": RegexFilter(r"#### (\-?[0-9\.\,]+)"),
        "flexible_extract": RegexFilter(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1),
    }
    ignored = [",", "\\$", "(?s).*#### ", "\\.$"]
    return {
        name: bool(
            metrics.exact_match_hf_evaluate(
                np.array(next(iter(used.apply([[text]], [{}])))), np.array([gold]), ignored, ignore_case=True
            )["exact_match"]
        )
        for name, used in filters.items()
    }


@pytest.mark.parametrize("text", TEXTS)
def test_the_filters_are_the_harness_s(text):
    expected = by_harness(text, GOLD)
    found = {"strict_match": answers.strict_match(text, GOLD), "flexible_extract": answers.flexible_extract(text, GOLD)}
    assert found == expected


def test_numbers_without_the_filters_faults():
    right = [answers.number(text, GOLD) for text in TEXTS]
    assert right == [True, True, True, True, True, True, True, False, False, False, True, True, True]
    # What the published filters make of the same texts.
    assert not answers.flexible_extract("The answer is 1224.00", GOLD)
    assert not answers.flexible_extract(TEXTS[4], GOLD)
    assert not answers.flexible_extract("1224 it is ,.", GOLD)
    assert answers.number("1224 it is ,.", GOLD)


def test_arithmetic_is_exact():
    reference = "That leaves 183 - 25 = 158 hooks.\nMissing are 221 - 158 = 63 hooks.\nAnswer: 63"
    texts = [reference, "Answer: 63", "Answer: 630", "63", "Answer: 6\nAnswer: 63"]
    found = answers.scored("arithmetic", texts, [reference] * 5)
    assert [score["exact"] for score in found] == [True, True, False, False, False]


MATH = r"We get $x^2 = 2$, so the answer is $\boxed{\frac{\sqrt{2}}{2}}$."
MATH_TEXTS = {
    r"Hence $\boxed{\frac{\sqrt{2}}{2}}$.": (True, True),
    r"Hence $\boxed{ \frac{ \sqrt{2} }{2} }$.": (True, True),
    r"The answer is $\frac{1}{\sqrt{2}}$.": (True, False),
    r"Hence $\boxed{\frac{\sqrt{3}}{2}}$.": (False, False),
    "I do not know": (False, False),
}


def test_math_by_boxes_and_by_math_verify():
    pytest.importorskip("math_verify")
    found = answers.scored("math500", list(MATH_TEXTS), [MATH] * len(MATH_TEXTS))
    assert [(score["math_verify"], score["boxed"]) for score in found] == list(MATH_TEXTS.values())
    assert [answers.accuracy(score) for score in found] == [pair[0] for pair in MATH_TEXTS.values()]
    found = answers.scored("gsm8k", ["It is 1,224 in all.", "It is $1224.00$", "1225"], [GOLD] * 3)
    assert [score["math_verify"] for score in found] == [True, True, False]


def test_math_verify_from_a_thread():
    pytest.importorskip("math_verify")
    found = []
    thread = threading.Thread(
        target=lambda: found.extend(answers.math_verify("gsm8k", ["It is 5", "6"], ["#### 5"] * 2))
    )
    thread.start()
    thread.join()
    assert found == [True, False]


def test_without_math_verify(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "math_verify", None)
    assert not answers.has_math_verify()
    assert answers.scored("math500", [MATH], [MATH]) == [{"math_verify": None, "boxed": True}]
    with pytest.raises(LoopscopeError, match=r"pip install 'loopscope\[answers\]'"):
        answers.math_verify("gsm8k", ["5"], ["#### 5"])


def test_a_task_without_answers_is_one_line():
    with pytest.raises(LoopscopeError, match="of stories cannot be scored: choose from gsm8k, math500, arith"):
        answers.scored("stories", ["a"], ["b"])
