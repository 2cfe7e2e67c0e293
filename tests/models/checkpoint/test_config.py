"""Reading config.json: types, defaults, and one line for what is wrong."""

from __future__ import annotations

import pytest

from loopscope.errors import LoopscopeError
from loopscope.models.checkpoint.config import ConfigFields


def test_values_and_defaults():
    fields = ConfigFields({"a": 3, "b": 0.5, "c": True, "d": [1, 2], "e": 7, "n": None, "m": {"x": 1}}, "test")
    assert (fields.size("a"), fields.size("n", 4), fields.count("z", 0)) == (3, 4, 0)
    assert (fields.number("b"), fields.number("a"), fields.number("n", 2.0)) == (0.5, 3.0, 2.0)
    assert (fields.flag("c", False), fields.flag("n", True)) == (True, True)
    assert (fields.token_ids("d", 8), fields.token_ids("e", 8), fields.token_ids("n", 8)) == ((1, 2), (7,), ())
    nested = fields.mapping("m")
    assert nested is not None
    assert nested.size("x") == 1
    assert fields.mapping("n") is None


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda f: f.size("missing"), "config.json \\(test\\): missing is missing"),
        (lambda f: f.size("zero"), "zero must be a positive integer, not 0"),
        (lambda f: f.size("true"), "true must be a positive integer, not True"),
        (lambda f: f.count("minus"), "minus must be an integer of at least 0, not -1"),
        (lambda f: f.number("text"), "text must be a positive number, not 'x'"),
        (lambda f: f.number("infinite"), "infinite must be a positive number, not inf"),
        (lambda f: f.size("huge"), "huge must be at most 2147483647, not 1000"),
        (lambda f: f.size("three", most=2), "three must be at most 2, not 3"),
        (lambda f: f.number("huge"), "huge must be from 1e-30 to 1e\\+30, not 1000"),
        (lambda f: f.number("three", most=1.0), "three must be from 1e-30 to 1.0, not 3"),
        (lambda f: f.number("nan"), "nan must be a positive number, not nan"),
        (lambda f: f.token_ids("three", 3), "three 3 is outside the vocabulary of 3"),
        (lambda f: f.token_ids("minus", 3), "minus -1 is outside the vocabulary of 3"),
        (lambda f: f.flag("long", True), "long must be true or false, not 'x{78}…"),
        (lambda f: f.flag("zero", True), "zero must be true or false, not 0"),
        (lambda f: f.mapping("text"), "text must be an object, not 'x'"),
        (lambda f: f.token_ids("text", 8), "text must be a token id or a list of them, not 'x'"),
        (lambda f: f.only("text", "y", "z"), "text 'x' is not supported, only 'y' or 'z'"),
        (lambda f: f.grouped_heads(4, "three"), "4 attention heads cannot share 3 key-value heads"),
        (lambda f: f.head_width(10, 4), "hidden size 10 does not divide into 4 heads; give head_dim"),
        (lambda f: f.head_width(12, 4), "head_dim 3 is odd"),
    ],
)
def test_what_is_wrong_is_named(read, message):
    given = {"zero": 0, "true": True, "minus": -1, "text": "x", "infinite": float("inf"), "three": 3}
    given |= {"huge": 10**400, "nan": float("nan"), "long": "x" * 5000}
    with pytest.raises(LoopscopeError, match=message):
        read(ConfigFields(given, "test"))


def test_fewer_dimensions_than_heads():
    with pytest.raises(LoopscopeError, match="does not divide"):
        ConfigFields({}, "test").head_width(2, 4)
