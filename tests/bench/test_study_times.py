"""The bootstrap's row: its intervals are SciPy's, its records those of the paper's matrix."""

from __future__ import annotations

import pytest

from loopscope.bench.study_times import MODELS, RECORDS, bootstrap_rows, rows


def test_intervals_agree_with_scipys(setting):
    pytest.importorskip("scipy")
    (row,) = bootstrap_rows(setting)
    assert row.figures["largest_difference"] < 1e-12


def test_records_are_as_many_as_in_the_papers_mechanism_matrix():
    assert MODELS * sum(RECORDS.values()) == 35_583


@pytest.mark.slow
def test_every_table_and_figure_is_made_from_measured_runs(setting):
    pytest.importorskip("matplotlib")
    found = {row.name: row for row in rows(setting)}
    assert found["studies"].size["updates"] == 2 * 2 * 8 * 2
    total = found["studies:tables"].measured.value + found["studies:figures"].measured.value
    assert found["studies"].measured.value == pytest.approx(total + found["studies"].figures["reading_s"])
