from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.tasks.template import Wording


@given(st.text(), st.text())
def test_values_go_in_as_they_are(first: str, second: str) -> None:
    filled = Wording("<{a}|{b}>{{}}").fill({"a": first, "b": second}, "row")
    assert filled == f"<{first}|{second}>{{}}"


@given(st.text())
def test_conversions_trim_and_capitalise(value: str) -> None:
    assert Wording("{a!t}").fill({"a": value}, "row") == value.strip()
    assert Wording("{a!c}").fill({"a": value}, "row") == value.capitalize()


def test_names_are_the_fields_it_needs() -> None:
    assert Wording("{a} {b!t} {a}").names == {"a", "b"}


def test_a_missing_field_names_the_row_and_what_there_is() -> None:
    with pytest.raises(LoopscopeError, match=r"x\.jsonl, line 3: field 'b' is missing.*there is: a, c"):
        Wording("{b}").fill({"a": "", "c": ""}, "x.jsonl, line 3")


@pytest.mark.parametrize("text", ["{a.b}", "{a[0]}", "{}", "{0}", "{a:>10}", "{a!r}", "{a", "a}", "{__class__.x}"])
def test_anything_but_a_plain_field_is_refused(text: str) -> None:
    with pytest.raises(LoopscopeError, match="mine"):
        Wording(text, "mine")
