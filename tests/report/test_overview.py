import numpy as np
import pytest

from loopscope.report.evaluation_set import sets_of
from loopscope.report.overview import Overview, outcome_shares, step_gains
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
    return Overview(records, compute_tables(records, FEW), FEW).of(sets_of(run)[0])


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


def test_safe_step_names_its_population(overview, riddles):
    safe = next(step for step in overview["updates"][1]["steps"] if step["key"] == "safe")
    inside = (riddles.A[1] > 0) & (riddles.Q[1] < 0)
    assert safe["population"] == f"{inside.sum()} of 30 questions"


def test_depths_carry_means_and_the_best(overview, riddles):
    means = [entry["value"] for entry in overview["depth"]["means"]]
    np.testing.assert_allclose(means, riddles.utility.mean(axis=0))
    assert overview["depth"]["peak"] == riddles.depths[int(riddles.utility.mean(axis=0).argmax())]


def test_every_number_comes_with_words(overview):
    for entry in overview["updates"]:
        assert all(step["words"] and step["text"] for step in entry["steps"])
        assert all(fact["words"] and fact["text"] for fact in entry["facts"])


def test_a_quick_run_shows_what_it_has(tmp_path, synthetic):
    made = synthetic.Made([synthetic.Question("q", ["a"])] * 4, level="quick", tokens=False)
    run = synthetic.write_run(tmp_path / "quick", made)
    records = Records([run])
    found = Overview(records, compute_tables(records, FEW), FEW).of(sets_of(run)[0])
    assert [step["key"] for step in found["updates"][0]["steps"]] == ["full"]
