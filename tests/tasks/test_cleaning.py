from __future__ import annotations

from typing import Any

import pytest

from loopscope._errors import LoopscopeError
from loopscope.tasks.cleaning import clean, parse_steps


def test_steps_run_in_the_order_given() -> None:
    a_then_b = parse_steps([{"replace": "a", "with": "b"}, {"replace": "b", "with": "c"}], "t")
    b_then_a = parse_steps([{"replace": "b", "with": "c"}, {"replace": "a", "with": "b"}], "t")
    assert clean("ab", a_then_b) == "cc"
    assert clean("ab", b_then_a) == "bc"


def test_a_replaced_text_is_no_pattern() -> None:
    assert clean("x [title] y", parse_steps([{"replace": " [title]", "with": ". "}], "t")) == "x.  y"


def test_no_steps_change_nothing() -> None:
    assert clean(" x ", ()) == " x "


@pytest.mark.parametrize(
    "listed",
    ["trim", [{"trim": False}], [{"replace": "a"}], [{"replace": "", "with": "b"}], [{"pattern": 1, "with": ""}], [1]],
)
def test_an_unknown_step_is_refused(listed: Any) -> None:
    with pytest.raises(LoopscopeError, match="template x"):
        parse_steps(listed, "template x")


def test_a_bad_pattern_is_refused() -> None:
    with pytest.raises(LoopscopeError, match="not a regular expression"):
        parse_steps([{"pattern": "[", "with": ""}], "template x")
