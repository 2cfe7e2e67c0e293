"""Choices in a specification: read, refused in one line where there is no such choice, part of the model's name."""

from __future__ import annotations

import pytest

from loopscope.errors import LoopscopeError
from loopscope.models.choices import chosen_number, chosen_word, require_known, split_choices
from loopscope.models.registry import parse_spec


@pytest.mark.parametrize(
    "spec", ["toy-ouro", "loop:toy-ouro:0-1", "org/name@main", "a:b", "a:1=2", "a=b", "a:b=", "a:=b", "", ":a=b"]
)
def test_other_specifications_choose_nothing(spec):
    assert split_choices(spec) == (spec, {})


def test_a_choice_belongs_to_the_name_of_the_model(tmp_path):
    source = parse_spec("ouro-1.4b@main:a=1,b_c=x/y")
    assert (source.name, source.revision, dict(source.chosen)) == (
        "ouro-1.4b:a=1,b_c=x/y",
        "main",
        {"a": "1", "b_c": "x/y"},
    )
    folder = tmp_path / "name:a=1"
    folder.mkdir()
    assert parse_spec(str(folder)).chosen == {}
    assert parse_spec(f"{folder}:b=2").chosen == {"b": "2"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: split_choices("x:a=1,a=2"), "gives a twice"),
        (lambda: require_known({"b": "1"}, "Ouro", {}), "Ouro has no choice 'b': leave it out"),
        (lambda: require_known({"b": "1"}, "Ouro", {"a": "", "c": ""}), "Ouro has no choice 'b': choose a, c"),
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
