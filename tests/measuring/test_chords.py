"""Updates from a state to one more than a loop later."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import loopscope as ls
from loopscope.report.question import question
from loopscope.store.schema import transition_of
from loopscope.studies.records import Records

CHORD = transition_of(1, 3)
CHOSEN = {"tasks": "stories", "limit": 3, "level": "grid", "tokens": True, "scales_to": 2, "dtype": "float32"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ls.Run:
    where = tmp_path_factory.mktemp("chords")
    return ls.measure("toy-ouro", transitions=["1>3", 2], output=where / "both", **CHOSEN)


def test_a_chord_is_an_update_between_its_ends(run: ls.Run, plain: Any) -> None:
    examples = plain.examples_of("toy-ouro", "stories", 3)
    updates = plain.updates_of(ls.load_model("toy-ouro", dtype="float64"), examples, 1, 3)
    records = run.records.filter(transition=CHORD).sort("row")
    longer = run.read("longer_steps").filter(transition=CHORD).sort("row")
    tokens = run.tokens.filter(pl.col("transition") == CHORD).group_by("row")
    means = tokens.agg(pl.col("slope", "quadratic", "gain", "quarter_gain").mean()).sort("row").collect()
    for row, update in enumerate(updates):
        slope, curvature = update.derivatives(0.0)
        expected = {"slope": slope, "quadratic": curvature / 2, "gain": update.gain(1.0)}
        for name, value in expected.items():
            assert (records[name][row], means[name][row]) == pytest.approx((value, value), rel=1e-5, abs=1e-5)
        assert means["quarter_gain"][row] == pytest.approx(update.gain(0.25), rel=1e-5, abs=1e-5)
        assert longer["gains"][row][-1] == pytest.approx(update.gain(2.0), rel=1e-5, abs=1e-5)


def test_a_chord_changes_nothing_else_and_is_named(run: ls.Run, tmp_path) -> None:
    alone = ls.measure("toy-ouro", transitions=[2], output=tmp_path / "one", **CHOSEN)
    for name in ("questions", "tokens"):
        assert_frame_equal(
            run.scan(name).filter(pl.col("transition") == 2).collect(), alone.scan(name).collect(), check_exact=True
        )
    depths = run.depths.filter(pl.col("depth") > 1)
    assert_frame_equal(depths, alone.depths, check_exact=True)
    assert run.depths.filter(pl.col("depth") == 1)["utility"].to_numpy() == pytest.approx(
        run.records.filter(pl.col("transition") == CHORD)["utility_before"].to_numpy(), abs=1e-5
    )
    assert [updates.condition.update for updates in Records([run]).updates] == ["2→3", "1→3"]
    assert "1→3" in str(run.table("mechanism"))
    assert "1→3" in question(run, run.examples["example_id"][0], "1>3", None, 1.0).title
    again = ls.measure("toy-ouro", transitions=[2, CHORD], output=run.path, **CHOSEN)
    assert again.records.equals(run.records)
