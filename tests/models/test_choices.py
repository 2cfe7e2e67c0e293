"""Options of a family: read, refused in one line where there is no such option."""

from __future__ import annotations

import pytest

from loopscope.errors import LoopscopeError
from loopscope.models.choices import chosen_number, chosen_word, require_known


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: require_known({"b": "1"}, "Ouro", {}), "Ouro has no option 'b': leave it out"),
        (lambda: require_known({"b": "1"}, "Ouro", {"a": "", "c": ""}), "Ouro has no option 'b': choose a, c"),
        (lambda: chosen_word({"a": "x"}, "a", ("y", "z"), "y"), "a=x is not known: choose y or z"),
        (lambda: chosen_number({"a": "0"}, "a", 3, 9), "a=0 is not a whole number from 1 to 9"),
        (lambda: chosen_number({"a": "ten"}, "a", 3, 9), "a=ten is not a whole number from 1 to 9"),
    ],
)
def test_what_cannot_be_chosen_is_one_line(call, said):
    with pytest.raises(LoopscopeError, match=said):
        call()


def test_what_is_left_out_is_the_default():
    assert (chosen_word({}, "a", ("y",), "y"), chosen_number({}, "a", 3, 9), chosen_number({"a": "4"}, "a", 3, 9)) == (
        "y",
        3,
        4,
    )
