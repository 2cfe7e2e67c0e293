"""`scales_to=`: φ beyond the proposed step against plain readouts in float64, and what is stored and refused."""

from __future__ import annotations

from typing import Any

import pytest

from loopscope.errors import LoopscopeError
from loopscope.measuring.config import MeasureConfig

FAMILIES = ("ouro", "huginn")
SCALES = [index / 20 for index in range(41)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_numbers_are_those_of_plain_readouts(family: str, task: str, measured: Any, checkpoint: Any, plain: Any):
    options = {
        "limit": 2,
        "level": "quick",
        "dtype": "float64",
        "readout_dtype": "float64",
        "scales_to": 2,
        "depths": "",
    }
    run = measured(family, task, **options)
    rows = run.read("longer_steps").sort("row")
    updates = plain.plain_updates(checkpoint(family), task, 2, 2, dtype="float64")
    for update, row in zip(updates, rows.to_dicts(), strict=True):
        assert row["gains"] == pytest.approx([update.gain(alpha) for alpha in SCALES], abs=1e-9)
        assert row["end_slope"] == pytest.approx(update.derivatives(1.0, 1)[0], abs=1e-8)
        assert row["quadratic_gain"] == pytest.approx(update.gain(row["quadratic_scale"]), abs=1e-9)


def test_the_first_scales_are_those_of_the_grid_and_concave_paths_end_where_the_slope_says(measured: Any):
    run = measured(limit=5, transitions=[1, 2, 3], scales_to=2)
    found = run.read("longer_steps").join(run.records, on=["row", "transition"])
    assert found["gains"].list.head(21).to_list() == found["grid_gain"].to_list()
    # An affine head makes a solution's path concave: it still rises at 1 exactly where its maximum lies beyond.
    rising = found["end_slope"] > 0
    best = found["gains"].list.arg_max()
    assert (best.filter(rising) >= 20).all()
    assert (best.filter(~rising) <= 20).all()


@pytest.mark.parametrize("given", [1, 5, 1.33, float("nan")])
def test_an_end_that_is_no_multiple_of_the_spacing_is_refused(given: Any):
    with pytest.raises(
        LoopscopeError, match=r"scales_to=.*: Input should be (greater than 1|less|a multiple of 0\.05)"
    ):
        MeasureConfig(model="toy-ouro", tasks="arithmetic", scales_to=given)
