from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from loopscope.errors import LoopscopeError
from loopscope.tasks.rows import read_rows
from loopscope.tasks.template import clean, parse_steps


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


@pytest.mark.parametrize(
    ("pattern", "by"), [("[", ""), ("(?=a)b", ""), (r"(a)\1", ""), ("a", r"\1"), ("a", r"\g<0>"), ("a", "\\")]
)
def test_a_bad_pattern_or_replacement_is_refused(pattern: str, by: str) -> None:
    with pytest.raises(LoopscopeError, match=r"template x: .* is no RE2 pattern and replacement"):
        parse_steps([{"pattern": pattern, "with": by}], "template x")


def test_a_pattern_of_thousands_of_characters_is_refused() -> None:
    for step in ({"pattern": "a" * 1001, "with": ""}, {"pattern": "a", "with": "b" * 1001}):
        with pytest.raises(LoopscopeError, match="exceeds 1000 characters"):
            parse_steps([step], "template x")


def test_groups_of_a_match_are_kept_as_in_re() -> None:
    text = "größe [1], [22] and\n[] [3\n4]"
    for pattern, by in ((r"\[.*?\]", ""), (r"\[(\d+)\]", r"<\1>"), (r"(?m)^[a-zö]+", "x"), ("(?i)AND|ö", "\\\\")):
        assert clean(text, parse_steps([{"pattern": pattern, "with": by}], "t")) == re.sub(pattern, by, text)


def test_hellaswags_texts_are_cleaned_as_by_re(data_dir: Path) -> None:
    texts = [
        text
        for row in read_rows(data_dir / "hellaswag_val.jsonl.gz")
        for text in (row.fields["ctx"], *row.fields["endings"])
    ]
    step = parse_steps([{"pattern": r"\[.*?\]", "with": ""}], "t")
    marked = [text for text in texts if "[" in text]
    assert len(marked) > 1000
    assert [clean(text, step) for text in marked] == [re.sub(r"\[.*?\]", "", text) for text in marked]


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*)*x", "((a?){30}){30}b"])
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    began = time.process_time()
    clean("a" * 2000 + "!", parse_steps([{"pattern": pattern, "with": ""}], "t"))
    assert time.process_time() - began < 2


def test_texts_that_are_too_long_or_grow_too_long_are_refused() -> None:
    with pytest.raises(LoopscopeError, match=r"row 3: a text of 20001 characters .* at most 20000"):
        clean("a" * 20_001, parse_steps([{"pattern": "a", "with": ""}], "t"), "row 3")
    doubled = parse_steps([{"replace": "a", "with": "aa"}] * 60, "t")
    with pytest.raises(LoopscopeError, match="row 3: 1048576 characters as worded"):
        clean("a", doubled, "row 3")
