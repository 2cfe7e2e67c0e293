"""Ratios and goals: which way round, and when nothing follows."""

from __future__ import annotations

import json

import pytest

from loopscope.bench.clock import Error, Measured
from loopscope.bench.row import Reference, Row, at_least, at_most

ONE = Measured.of([1.0, 2.0, 3.0])


def test_a_floor_is_what_we_take_more_than_and_an_alternative_what_we_take_less_than():
    four = Measured.of([4.0])
    assert Reference("floor", four, floor=True).ratio(ONE) == 0.5
    assert Reference("other way", four).ratio(ONE) == 2.0


@pytest.mark.parametrize(("measured", "met"), [(1.39, True), (1.4, True), (1.41, False)])
def test_a_goal_to_stay_under(measured, met):
    assert at_most("", 1.4, measured, judged=True).met is met


@pytest.mark.parametrize(("measured", "met"), [(129.0, False), (130.0, True), (131.0, True)])
def test_a_goal_to_reach(measured, met):
    assert at_least("", 130.0, measured, judged=True).met is met


def test_at_other_sizes_nothing_is_judged():
    assert at_most("", 1.0, 5.0, judged=False).met is None


def test_one_after_the_other_adds_up():
    assert ONE.plus(Measured.of([10.0])) == Measured(12.0, 11.0, 13.0, 1)


def test_seconds_are_also_given_for_a_thousand_tokens_and_other_units_are_not():
    size = {"tokens": 4000}
    assert Row("a", "", size, "s", ONE).as_json()["measured"]["per_1000_tokens"] == 0.5
    assert "per_1000_tokens" not in Row("a", "", size, "MiB", ONE).as_json()["measured"]


def test_no_number_that_json_lacks_is_written():
    nothing = Measured.of([0.0])
    row = Row(
        "a",
        "",
        {},
        "MiB",
        nothing,
        (Reference("r", ONE),),
        errors=(Error("q", 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, float("inf")),),
    )
    written = json.loads(json.dumps(row.as_json(), allow_nan=False))
    assert written["references"][0]["ratio"] is None
    assert (written["errors"][0]["rms_ratio"], written["errors"][0]["max_ratio"]) == (None, 1.0)
    assert written["errors"][0]["high"] is None
