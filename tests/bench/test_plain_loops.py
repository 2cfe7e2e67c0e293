"""The plain loops are a second implementation of the mathematics: the two agree on every run of the tests."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loopscope.bench.plain_loops import PAIRS, disagreement, make_updates, measure


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_plain_loops_agree_with_the_vectorised_functions(pair):
    row = measure(pair, make_updates(300), repeats=1)
    assert row.figures["largest_difference"] < 1e-13
    assert row.size["updates"] == 300


def test_a_missing_number_on_one_side_is_a_disagreement():
    assert disagreement((np.array([1.0, math.nan]),), [(1.0,), (math.nan,)]) == 0.0
    assert disagreement((np.array([1.0, math.nan]),), [(1.0,), (2.0,)]) == math.inf
    assert disagreement((np.array([1.0, 2.0]),), [(1.5,), (2.0,)]) == 0.5
