"""What the page opens with is chosen by the data: the update that tells most, and the clearest path."""

import numpy as np
import pytest

from loopscope.report.evaluation_set import sets_of
from loopscope.report.overview import Candidate, opening
from loopscope.stats import Estimate, Interval
from loopscope.studies.runs import finding, leading_update


def made_of(synthetic, A, Q, **changes):
    """A run with these slopes and curvature terms, [T, N]."""
    A, Q = np.array(A, dtype=float), np.array(Q, dtype=float)
    transitions = tuple(range(3, 3 + len(A)))
    questions = [synthetic.Question(f"q{row}", ["a b"]) for row in range(A.shape[1])]
    made = synthetic.Made(questions, transitions=transitions, depths=tuple(range(1, 8)), **changes)
    made.A, made.Q, made.R = A, Q, np.zeros_like(A)
    return made


@pytest.fixture
def read(tmp_path, synthetic):
    def read(A, Q, folder="run", **changes):
        (data,) = sets_of(synthetic.write_run(tmp_path / folder, made_of(synthetic, A, Q, **changes)))
        return data

    return read


def interval(low, high):
    return Estimate((low + high) / 2, 9, Interval(low, high))


def test_the_earliest_clear_decline_leads(read):
    data = read([[1, 1], [1, 1], [1, 1]], [[-2, -2], [-2, -2], [-2, -2]])
    full = [interval(-0.1, 0.2), interval(-0.3, -0.1), interval(-0.9, -0.8)]
    assert leading_update(data.updates, full) == 1


def test_without_a_decline_most_finite_step_failures_lead(read):
    data = read([[1, -1, 1], [1, 1, 1], [-1, -1, -1]], [[-2, -1, 1], [-2, -2, 1], [-1, -1, -1]])
    assert leading_update(data.updates, [interval(-1, 1)] * 3) == 1


def test_the_clearest_path_rises_and_falls(read):
    # A large fall without a rise, a large rise without a fall, both, and a failure of direction.
    data = read([[0.01, 4.0, 2.0, -5.0]], [[-3.0, -4.01, -4.0, -1.0]])
    assert [int(code) for code in data.updates[0].outcome] == [3, 3, 3, 2]
    shown = opening([Candidate("s0-0", data, "some/model", 0, True)])
    assert (shown["id"], shown["transition"], shown["outcome"]) == ("riddles-2", 3, 3)
    assert shown["gain"] == pytest.approx(-2.0)
    assert max(shown["path"]) == pytest.approx(0.25)
    assert "clearest of 3" in shown["why"]


def test_trained_weights_come_before_random_ones_and_a_decline_before_none(read):
    clear = {"A": [[2.0, 2.0]], "Q": [[-4.0, -4.0]]}
    faint = {"A": [[0.2, 0.2]], "Q": [[-0.4, -0.4]]}
    random = read(**clear, folder="a", model={"random_weights": True, "weights": {}})
    level, falling = read(**clear, folder="b"), read(**faint, folder="c")
    chosen = opening(
        [
            Candidate("random", random, "some/model", 0, True),
            Candidate("level", level, "some/model", 0, False),
            Candidate("falling", falling, "some/model", 0, True),
        ]
    )
    assert chosen["set"] == "falling"


def test_without_a_failure_the_largest_gain_is_shown(read):
    data = read([[1.0, 2.0, 0.5]], [[0.1, 0.1, 0.1]])
    shown = opening([Candidate("s0-0", data, "some/model", 0, False)])
    assert shown["id"] == "riddles-1"
    assert "harms no question" in shown["title"]


def test_a_quick_run_has_both_ends(read):
    data = read([[1.0, 1.0]], [[-2.0, -3.0]], level="quick", tokens=False)
    shown = opening([Candidate("s0-0", data, "some/model", 0, True)])
    assert (shown["alphas"], shown["stored"]) == ([0.0, 1.0], False)
    assert finding(data.updates[0]).predicted is None


def test_a_finding_counts_what_the_paths_say(read, riddles, synthetic, tmp_path):
    (data,) = sets_of(synthetic.write_run(tmp_path / "riddles", riddles))
    for at, updates in enumerate(data.updates):
        A, gain = riddles.A[at], riddles.path(at, 1.0)
        failures = (A > 0) & (gain < 0)
        scale = np.minimum(1, -A / (2 * riddles.Q[at]))
        won = scale * (A + scale * (riddles.Q[at] + scale * riddles.R[at])) > 0
        found = finding(updates)
        assert (found.harmful, found.failures) == ((gain < 0).sum(), failures.sum())
        assert found.predicted == (won & failures).sum()
