import numpy as np
import pytest

from loopscope.studies.records import Records
from loopscope.studies.tables.depths import depth_coverage, running_best


@pytest.fixture
def sweep(records, synthetic):
    """Records of one task with given mean utilities over depth and a small question spread."""

    def make(means, depths, n=40, spread=0.0):
        rng = np.random.default_rng(0)
        utility = np.array(means) + rng.normal(0, 1, (n, 1)) + spread * rng.normal(0, 1, (n, len(means)))
        task = synthetic.Task("sums", {4: synthetic.Paths.of(np.ones(n), -np.ones(n))}, utility=utility)
        return records(task, depths=depths, level="quick")

    return make


def test_peak_and_first_decline(sweep):
    (row,) = depth_coverage.table(sweep([-2.0, -1.0, -1.2, -1.5], (1, 4, 5, 8))).rows
    assert (row["n"], row["peak"], row["decline"]) == (40, 4, "4→5")
    assert row["decline_change"].value == pytest.approx(-0.2)


def test_decline_is_taken_from_the_best_depth_so_far(sweep):
    # Falls at 5, recovers at 8 without passing the best, falls below it for certain only then.
    (row,) = depth_coverage.table(sweep([-1.0, -1.0, -3.0], (4, 5, 8))).rows
    assert (row["peak"], row["decline"]) == (4, "4→8")


def test_equal_means_keep_the_smallest_depth_as_peak(sweep):
    (row,) = depth_coverage.table(sweep([-1.0, -1.0, -1.0], (4, 5, 8))).rows
    assert (row["peak"], row["decline"], row["decline_change"].value) == (4, None, None)


def test_a_fall_within_the_noise_is_no_decline(sweep):
    records = sweep([-1.0, -1.001], (4, 5), spread=0.5)
    (row,) = depth_coverage.table(records).rows
    assert row["decline"] is None
    (pair,) = running_best(records.sweeps[0])
    assert pair.change.interval.low < 0 < pair.change.interval.high


def test_a_decline_before_the_peak_counts(sweep):
    (row,) = depth_coverage.table(sweep([-1.0, -1.5, -0.5], (4, 5, 8))).rows
    assert (row["peak"], row["decline"]) == (8, "4→5")


def test_one_question_has_no_interval_and_no_decline(sweep):
    (row,) = depth_coverage.table(sweep([-1.0, -2.0], (4, 5), n=1)).rows
    assert (row["peak"], row["decline"]) == (4, None)


def test_models_stand_side_by_side(tmp_path, synthetic):
    runs = []
    for name in ("first", "second"):
        task = synthetic.Task("sums", {4: synthetic.Paths.of([1.0, 2.0], [-1.0, -1.0])})
        model = {"name": name, "toy": False}
        runs.append(synthetic.write_run(tmp_path / name, [task], level="quick", model=model))
    lines = depth_coverage.table(Records(runs)).to_text().splitlines()
    assert any("first" in line and "second" in line for line in lines)
    assert sum(line.startswith("sums") for line in lines) == 1
