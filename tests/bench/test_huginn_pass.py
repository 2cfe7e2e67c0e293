"""Rows of passes through a nonlinear readout, at the sizes of a test."""

from __future__ import annotations

from loopscope.bench import huginn_pass
from loopscope.bench.whole_pass import BARE


def test_three_passes_and_how_their_grids_came_about(setting):
    grid, quick, options = huginn_pass.rows(setting)
    assert [row.name for row in (grid, quick, options)] == [wanted.name for wanted in huginn_pass.WANTED]
    for row in (grid, quick, options):
        assert row.size["questions"] == huginn_pass.QUICK_QUESTIONS
        assert row.ratio(BARE) > 0.0
        assert row.goals[0].met is None
    assert "evaluated_questions" not in quick.figures
    for row in (grid, options):
        assert row.figures["evaluated_questions"] == 0.0
        assert 0.0 < row.figures["mean_relative_change"] < 0.3
        assert "host_survey" in row.figures
