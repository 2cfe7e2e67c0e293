"""Rows of passes through a nonlinear readout, at the sizes of a test."""

from __future__ import annotations

import pytest

from loopscope.bench import huginn_pass


def test_three_passes_and_how_their_grids_came_about(setting):
    grid, quick, options = huginn_pass.rows(setting)
    assert [row.name for row in (grid, quick, options)] == [wanted.name for wanted in huginn_pass.WANTED]
    for row, wanted in zip((grid, quick, options), huginn_pass.WANTED, strict=True):
        assert row.size["questions"] == huginn_pass.QUICK_QUESTIONS
        before = huginn_pass.BEFORE[wanted.task] * row.size["tokens"] / 1000
        assert row.goals[0].measured == pytest.approx(row.measured.value / before)
        assert row.goals[0].met is None
    assert "evaluated_questions" not in quick.figures
    for row in (grid, options):
        assert row.figures["evaluated_questions"] == 0.0
        assert 0.0 < row.figures["mean_relative_change"] < 0.3
        assert "host_survey" in row.figures
