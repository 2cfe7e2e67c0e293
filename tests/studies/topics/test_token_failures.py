import numpy as np
import pytest

from loopscope.stats import Bootstrap
from loopscope.studies.topics.mechanism import tokens


@pytest.fixture
def audited(records, synthetic):
    """Two questions with one and three tokens; the last token is not taken by the exit policy."""
    paths = synthetic.Paths.of([0.5, 0.5], [-1.0, -1.0])
    columns = {
        "row": np.array([0, 1, 1, 1]),
        "slope": np.array([0.5, 0.5, -0.5, 0.5]),
        "quadratic": np.array([-1.0, -0.25, 0.0, -1.0]),
        "gain": np.array([-0.5, 0.25, -0.5, -0.5]),
        "quarter_gain": np.array([0.0625, 0.1, -0.1, 0.0625]),
        "quadratic_gain": np.array([-0.01, 0.25, 0.0, 0.0625]),
        "continues": np.array([True, True, True, False]),
    }
    return records(synthetic.Task("sums", {1: paths}, tokens={1: columns}), tokens=True)


def test_hand_computed_row(audited):
    (row,) = tokens.table(audited).rows
    assert (row["questions"], row["positions"], row["failures"], row["beyond_margin"]) == (2, 3, 1, 1)
    assert row["failure_rate"].value == pytest.approx(1 / 3)
    assert (row["recovered_quarter"], row["quarter_rate"].value) == (1, 1.0)
    assert (row["recovered_quadratic"], row["quadratic_rate"].value) == (0, 0.0)
    assert row["full"].value == pytest.approx(-0.25)
    assert row["quarter"].value == pytest.approx(0.0625 / 3)
    assert row["over_full"].value == pytest.approx((0.49 + 0 + 0.5) / 3)
    assert row["over_quarter"].value == pytest.approx((-0.0725 + 0.15 + 0.1) / 3)


def test_intervals_resample_questions_with_all_their_tokens(audited):
    (row,) = tokens.table(audited, Bootstrap(resamples=500)).rows
    # Resamples are {0,0}, {0,1}, {1,1}: means of ΔU -0.5, -0.25, -0.125, and nothing in between.
    assert (row["full"].interval.low, row["full"].interval.high) == (-0.5, -0.125)
    # Without question 0 there is no failure to recover.
    assert row["quarter_rate"].interval.undefined == pytest.approx(125, abs=40)


def test_wrong_options_are_no_references(records, synthetic):
    """Every token row of a stored run, gone through one by one."""
    rng = np.random.default_rng(7)
    row, option = np.repeat(np.arange(6), 8), np.tile([0, 0, 1, 1, 1, 2, 3, 3], 6)
    columns = {name: rng.normal(size=48) for name in ("slope", "quadratic", "gain", "quarter_gain", "quadratic_gain")}
    columns |= {"row": row, "option": option, "token": np.tile([0, 1, 0, 1, 2, 0, 0, 1], 6)}
    paths = synthetic.Paths.of(np.full(6, 0.5), np.full(6, -1.0))
    right = np.array([0, 1, 2, 3, 1, 0])
    task = synthetic.Task(
        "choices", {1: paths}, kind="options", tokens={1: columns}, right=right, columns={"correct_option": right}
    )
    made = records(task, tokens=True)
    (found,) = tokens.table(made).rows
    expected = [i for i in range(48) if option[i] == right[row[i]]]
    assert (found["positions"], found["stored"], found["questions"]) == (len(expected), len(expected), 6)
    assert found["full"].value == pytest.approx(sum(columns["gain"][i] for i in expected) / len(expected))
    failed = [i for i in expected if columns["slope"][i] > 0 > columns["gain"][i]]
    assert found["failures"] == len(failed)
    assert found["recovered_quarter"] == sum(columns["quarter_gain"][i] > 0 for i in failed)


def test_updates_that_the_exit_policy_never_takes_are_named(records, synthetic):
    paths = synthetic.Paths.of([0.5], [-1.0])
    columns = {name: np.full(2, 0.5) for name in ("slope", "quadratic", "gain", "quarter_gain", "quadratic_gain")}
    columns |= {"row": np.array([0, 0])}
    by_transition = {t: {**columns, "continues": np.array([t < 4, False])} for t in (3, 4, 5)}
    task = synthetic.Task("sums", dict.fromkeys((3, 4, 5), paths), tokens=by_transition)
    result = tokens.table(records(task, tokens=True))
    assert [(row.condition.transition, row["positions"]) for row in result.rows] == [(3, 1)]
    assert "toy-ouro sums test 5→6: the exit policy takes no reference token through it" in result.notes[-1]
    assert "no run holds token rows" not in result.to_text()
