"""Rows of whole passes over options: sharing saves tokens and changes nothing, memory comes from a process each."""

from __future__ import annotations

import pytest

from loopscope.bench.long_passes import questions_rows, shared_rows


def test_sharing_runs_fewer_tokens_and_gives_the_same_utilities(setting):
    (row,) = shared_rows(setting)
    assert row.figures["tokens_shared"] < row.figures["tokens_apart"]
    assert row.figures["padded_tokens_shared"] < row.figures["padded_tokens_apart"]
    assert row.figures["largest_difference_utility"] < 1e-6


@pytest.mark.slow
def test_memory_is_that_of_the_process_that_measured(setting):
    (row,) = questions_rows(setting)
    assert row.size["questions"] == 8
    assert row.figures["rows_written"] > 0
    assert 50 < row.measured.value < 4000
