import numpy as np
import pytest

from loopscope.report.evaluation_set import sets_of
from loopscope.report.overview import of_decline, outcome_shares, step_gains
from loopscope.report.overview import overview as overview_of
from loopscope.report.study_pages import compute_tables
from loopscope.stats import Bootstrap
from loopscope.studies.records import Records

FEW = Bootstrap(resamples=100)


@pytest.fixture(scope="module")
def run(tmp_path_factory, synthetic, riddles):
    return synthetic.write_run(tmp_path_factory.mktemp("overview") / "run", riddles)


@pytest.fixture(scope="module")
def overview(run):
    records = Records([run])
    return overview_of(sets_of(run)[0], records, compute_tables(records, FEW), FEW)


def test_outcome_counts_are_those_of_the_paths(overview, riddles):
    for at, entry in enumerate(overview["updates"]):
        counts = [outcome["count"] for outcome in entry["outcomes"]]
        assert counts == [int((riddles.outcome(at) == code).sum()) for code in range(4)]
        assert sum(counts) == entry["n"] == 30


def test_shares_lie_in_their_intervals(run):
    for share in outcome_shares(sets_of(run)[0].updates[0], FEW):
        assert share["low"] <= share["value"] <= share["high"]


def test_steps_are_means_of_the_paths(run, riddles):
    gains = step_gains(sets_of(run)[0].updates[1], FEW)
    grid = riddles.grid(1)
    assert gains["full"].value == pytest.approx(grid[:, 20].mean())
    assert gains["quarter"].value == pytest.approx(grid[:, 5].mean())
    assert gains["halt"].value == pytest.approx(np.maximum(grid[:, 20], 0).mean())
    assert gains["oracle"].value == pytest.approx(grid[:, ::5].max(axis=1).mean())


def test_steps_on_one_axis_are_over_the_same_questions(overview, riddles):
    """A safe step exists for some questions; beside means over all of them it would seem to beat the oracles."""
    for at, entry in enumerate(overview["updates"]):
        assert [step["key"] for step in entry["steps"]] == ["full", "quarter", "quadratic", "halt", "oracle"]
        A, Q, R = riddles.A[at], riddles.Q[at], riddles.R[at]
        inside = (A > 0) & (Q < 0)
        assert 0 < inside.sum() < 30
        bound = np.maximum(np.maximum(-2 * Q, -2 * Q - 6 * R), 0)
        safe = np.minimum(1, 1.8 * A / bound)
        expected = {
            "full": A + Q + R,
            "quarter": riddles.path(at, 0.25),
            "safe": safe * (A + safe * (Q + safe * R)),
            "best": np.max([riddles.path(at, alpha) for alpha in np.linspace(0, 1, 257)], axis=0),
        }
        bounded = entry["bounded"]
        assert bounded["n"] == inside.sum()
        assert {step["key"]: step["value"] for step in bounded["steps"]} == {
            key: pytest.approx(gains[inside].mean()) for key, gains in expected.items()
        }


def test_only_fixed_scales_are_called_free_of_the_reference(overview):
    for entry in overview["updates"]:
        for step in (*entry["steps"], *entry["bounded"]["steps"]):
            assert step["blind"] == (step["key"] in ("full", "quarter"))


def test_shares_are_their_counts(overview, riddles):
    for at, entry in enumerate(overview["updates"]):
        A, gain = riddles.A[at], riddles.path(at, 1.0)
        expected = {
            "finite": (int(((A > 0) & (gain < 0)).sum()), int((gain < 0).sum())),
            "sign_slope": (int((np.sign(A) == np.sign(gain)).sum()), 30),
            "sign_quadratic": (int((np.sign(A + riddles.Q[at]) == np.sign(gain)).sum()), 30),
            "quarter": (
                int(((riddles.path(at, 0.25) > 0) & (A > 0) & (gain < 0)).sum()),
                int(((A > 0) & (gain < 0)).sum()),
            ),
        }
        found = {fact["key"]: (fact["count"], fact["of"]) for fact in entry["facts"] if fact["key"] in expected}
        assert found == expected
        for fact in entry["facts"]:
            assert fact["value"] == pytest.approx(fact["count"] / fact["of"])


def test_a_quick_run_shows_what_it_has(tmp_path, synthetic):
    made = synthetic.Made([synthetic.Question("q", ["a"])] * 4, level="quick", tokens=False)
    run = synthetic.write_run(tmp_path / "quick", made)
    records = Records([run])
    found = overview_of(sets_of(run)[0], records, compute_tables(records, FEW), FEW)
    assert [step["key"] for step in found["updates"][0]["steps"]] == ["full"]
    assert found["updates"][0]["bounded"] is None


def test_a_decline_names_both_depths():
    assert "By depth 6 it has clearly fallen below what depth 4 had reached" in of_decline(4, (4, 6), 8)
    assert "still the last depth" in of_decline(8, None, 8)
