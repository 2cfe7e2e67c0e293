from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.tasks.source_rows import Selection, parse_ids


def chosen(selection: Selection, total: int) -> list[int]:
    kept: list[int] = []
    for index in range(total):
        if selection.keeps(index, len(kept)):
            kept.append(index)
    return kept


@pytest.mark.parametrize("given", ["", "a", "1-", "-1", "3-1", "1,,2", "1.5", "٣", "1 2", "x" * 5000, "9" * 5000])
def test_bad_ids_are_refused(given: str) -> None:
    with pytest.raises(LoopscopeError, match="ids") as caught:
        parse_ids(given)
    assert len(str(caught.value)) < 300


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True), st.integers(1, 31))
def test_membership_and_check_agree_with_a_set(rows: list[int], total: int) -> None:
    selection = Selection.make(ids=rows)
    assert chosen(selection, 31) == sorted(rows)
    if beyond := sorted(row for row in rows if row >= total):
        with pytest.raises(LoopscopeError, match=f"names row {beyond[0]},"):
            selection.check(total, "x")
    else:
        selection.check(total, "x")


def test_subset_then_ids_then_limit_in_source_order() -> None:
    assert chosen(Selection(range(8), frozenset([7, 1, 3]), 2), 10) == [1, 3]
    assert chosen(Selection(range(3)), 10) == [0, 1, 2]
    assert chosen(Selection.make(limit=5), 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"limit": 0}, "limit=0 is not a whole number of at least 1"),
        ({"ids": []}, "ids= names 0 rows"),
        ({"ids": [1, 2, 1]}, "names row 1 twice"),
        ({"ids": [3, -1]}, "names -1"),
        ({"ids": 5}, "ids=5 is not a list of source rows"),
        ({"ids": "0-5"}, "ids='0-5' is not a list of source rows"),
        ({"ids": [True]}, "ids= names True; source rows are whole numbers"),
        ({"ids": [1.0]}, "ids= names 1.0; source rows are"),
        ({"ids": itertools.count()}, "ids= names 1000001 rows"),
        ({"limit": "5"}, "limit='5' is not a whole number"),
        ({"limit": True}, "limit=True is not a whole number"),
    ],
)
def test_impossible_choices_are_refused(arguments: dict, complaint: str) -> None:
    with pytest.raises(LoopscopeError, match=complaint):
        Selection.make(**arguments)


def test_rows_that_are_not_there_are_refused() -> None:
    with pytest.raises(LoopscopeError, match="row 5, but x has rows 0 to 4"):
        Selection.make(ids=[5]).check(5, "x")
    with pytest.raises(LoopscopeError, match="row 4, but x has rows 0 to 2"):
        Selection(range(3), frozenset([4])).check(5, "x")
    with pytest.raises(LoopscopeError, match="fewer than the 9"):
        Selection(range(9)).check(5, "x")
