"""Rows of passes beside the plain one: level full, `loopscope measure` as a command, and the Ray engine."""

from __future__ import annotations

import pytest

from loopscope.bench import from_command, level_full, ray_replicas


def test_level_full_counts_questions_a_second(setting):
    (row,) = level_full.rows(setting)
    assert row.size["questions"] == level_full.CPU_QUESTIONS
    assert row.figures["questions_per_second"] == pytest.approx(level_full.CPU_QUESTIONS / row.measured.value)
    assert row.goals[0].measured == row.figures["questions_per_second"]
    assert row.goals[0].met is None


def test_the_command_is_a_process_of_its_own(setting):
    (row,) = from_command.rows(setting)
    assert row.measured.repeats == 1
    assert row.goals[0].measured == row.measured.value > 0.0
    in_order = [row.figures[name] for name in ("opened", "first_unit", "stored")]
    assert 0.0 < in_order[0] < in_order[1] <= in_order[2] < row.measured.value


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own housekeeping
def test_replicas_give_the_local_engines_records(setting):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'loopscope[ray]'")
    (row,) = ray_replicas.rows(setting)
    speed, records = row.goals
    assert speed.measured == row.ratio(ray_replicas.LOCAL)
    assert records.met
