"""A run in a few sentences, and two runs on the same questions: pairs, intervals, rounding, conditions, the command."""

import json

import numpy as np
import pytest
from scipy import stats as scipy_stats

import loopscope as ls
from loopscope.cli.app import exit_code
from loopscope.errors import LoopscopeError, command_line_words
from loopscope.stats import Bootstrap
from loopscope.studies.runs import NAMES, Finding, checks, first_finding, parse_limits, run_lines

FEW = Bootstrap(resamples=60)


@pytest.fixture
def run(tmp_path, synthetic):
    """From slopes and curvatures to a run of the task `sums`."""

    def make(name, A, Q, transitions=(4,), task="sums", kind="solution", **changes):
        paths = {t: synthetic.Paths.of(A, Q) for t in transitions}
        made = synthetic.Task(task, paths, kind=kind, **{k: changes.pop(k) for k in ("columns",) if k in changes})
        return synthetic.write_run(tmp_path / name, [made], **{"level": "grid"} | changes)

    return make


@pytest.fixture
def two(run):
    rng = np.random.default_rng(5)
    A = rng.normal(0.4, 0.5, 80)
    first = run("first", A, -np.abs(rng.normal(0.5, 0.3, 80)), transitions=(3, 4))
    second = run("second", A + rng.normal(0, 0.2, 80), -np.abs(rng.normal(0.6, 0.3, 80)), transitions=(4, 5))
    return first, second


def row_of(found, name, transition=4):
    return next(row for row in found.rows if row.key == name and row.condition.transition == transition)


def met(found, *conditions):
    return [state for _, state in checks(found, parse_limits(conditions))]


@pytest.mark.parametrize("name", ["gain", "share"])
def test_intervals_are_those_of_scipys_paired_bootstrap(two, name):
    sides = [run.records.filter(transition=4).sort("row") for run in two]

    def value(side, chosen):
        gain, slope = side["gain"].to_numpy()[chosen], side["slope"].to_numpy()[chosen]
        return gain.mean(-1) if name == "gain" else ((gain < 0) & (slope > 0)).sum(-1) / (gain < 0).sum(-1)

    def statistic(places, axis=-1):
        return value(sides[1], places) - value(sides[0], places)

    expected = scipy_stats.bootstrap(
        (np.arange(80),), statistic, n_resamples=2000, method="percentile", rng=np.random.default_rng(20260904)
    ).confidence_interval
    row = row_of(ls.diff(*two), name)
    found = row["difference"]
    assert row["pairs"] == 80
    assert found.value == pytest.approx(statistic(np.arange(80)), abs=1e-12)
    assert (found.interval.low, found.interval.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_run_does_not_differ_from_itself(two):
    found = ls.diff(two[0], two[0], bootstrap=FEW)
    assert {row.condition.transition for row in found.rows} == {3, 4}
    assert all(row["difference"].value == 0 for row in found.rows)
    assert not any(note.startswith(("settings that differ", "not paired")) for note in found.notes)
    assert not any(met(found, "gain < 0, gain > 0, share > 0, slope.low > 0"))


def test_rounding_is_no_difference(run):
    """Sums of the same numbers in another order differ in their last bit."""
    A = np.array([0.1, 0.2, 0.3, 0.4])
    found = ls.diff(run("first", A, -0.3), run("second", A + 1e-14, -0.3), bootstrap=FEW)
    row = row_of(found, "slope")
    assert row["first"] != row["second"]
    assert (row["difference"].value, row["difference"].interval.low, row["difference"].interval.high) == (0, 0, 0)
    assert "0.000000 [0.000000, 0.000000]" in str(found)
    assert met(found, "slope > 0, slope < 0, slope.low > 0") == [False] * 3
    real = row_of(ls.diff(run("third", A, -0.3), run("fourth", A + 1e-5, -0.3), bootstrap=FEW), "slope")
    assert real["difference"].interval.low == pytest.approx(1e-5)


def test_questions_are_paired_by_name_not_by_place(run):
    """The second run has fewer questions; names are by place in these made-up runs."""
    found = ls.diff(run("first", [0.1, 0.2, 0.3, 0.4], -0.1), run("second", [0.2, 0.3], -0.1), bootstrap=FEW)
    row = row_of(found, "slope")
    assert (row["first"], row["second"], row["pairs"]) == (pytest.approx(0.15), pytest.approx(0.25), 2)
    assert "not paired: sums test 4→5: 2 only in first" in found.notes


def test_updates_and_tasks_can_be_chosen(two):
    first, second = two
    assert [row.condition.transition for row in ls.diff(first, first, transitions="3", bootstrap=FEW).rows] == [3] * 6
    with pytest.raises(LoopscopeError, match="no question of these tasks and updates in either run"):
        ls.diff(first, second, tasks="more")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["share > +0.02"], [("share", "", ">", 0.02)]),
        (["share>.02,gain.high<=-1e-3"], [("share", "", ">", 0.02), ("gain", "high", "<=", -0.001)]),
        (["share > 0.02", "slope.low >= 0.1"], [("share", "", ">", 0.02), ("slope", "low", ">=", 0.1)]),
        ([], []),
    ],
)
def test_conditions_are_read(given, read):
    assert parse_limits(given) == read


@pytest.mark.parametrize(
    "text",
    ["shar > 0.02", "share == 0.02", "share > inf", "share > 1e999", "share.mean > 0", "", "share > 1,,gain > 0"],
)
def test_what_is_no_condition_is_one_line_with_the_names(text):
    with command_line_words(), pytest.raises(LoopscopeError, match="expected NAME OP NUMBER") as caught:
        parse_limits([text])
    assert "\n" not in str(caught.value)
    assert all(name in str(caught.value) for name in NAMES)


def test_a_condition_without_a_value_is_told_and_does_not_fail(run):
    """No update of the first run is harmful, so its share is not defined."""
    found = ls.diff(run("a", [0.5], [-0.1]), run("b", [0.5], [-1.0]), bootstrap=FEW)
    ((text, state),) = checks(found, parse_limits(["share > 0"]))
    assert (text, state) == ("share > 0 at sums test 4→5: not decided: no value", None)


def test_accuracy_is_that_after_the_update(run, synthetic, tmp_path):
    chosen = np.array([[0, 0, 1], [0, 0, 0]])
    runs = []
    for name, picked in (("a", chosen), ("b", 1 - chosen)):
        task = synthetic.Task(
            "choices", {2: synthetic.Paths.of([0.5, 0.5], [-1.0, -1.0])}, kind="options", chosen=picked
        )
        runs.append(synthetic.write_run(tmp_path / f"options-{name}", [task], depths=(1, 2, 3)))
    row = row_of(ls.diff(*runs, bootstrap=FEW), "accuracy", 2)
    # The first option is right: after the update the first run chooses it once, the second once.
    assert (row["first"], row["second"]) == (0.5, 0.5)


def test_the_command_passes_fails_and_refuses(two, tmp_path, capsys):
    first, second = (str(run.path) for run in two)
    assert exit_code(["diff", first, second, "--fail-if", "gain > 100"]) == 0
    assert "gain > 100 at sums test 4→5" in capsys.readouterr().err
    assert exit_code(["diff", first, second, "--fail-if", "gain > -100", "--format", "json"]) == 1
    written = capsys.readouterr()
    assert written.err.endswith(", met\n")
    gain = next(row for row in json.loads(written.out)["rows"] if row["key"] == "gain")
    assert gain["difference"] == pytest.approx(
        two[1].records.filter(transition=4)["gain"].mean() - two[0].records.filter(transition=4)["gain"].mean()
    )
    assert exit_code(["diff", first, second, "--fail-if", "accuracy < 0"]) == 2
    assert "accuracy is not in both runs" in capsys.readouterr().err
    assert exit_code(["diff", first, str(tmp_path / "nowhere")]) == 2


def run_of(tmp_path, synthetic, **paths):
    """A run of one task with these updates."""
    task = synthetic.Task("sums", {int(name[1:]): each for name, each in paths.items()})
    return synthetic.write_run(tmp_path / "run", [task])


def test_the_earliest_clear_decline_leads(tmp_path, synthetic):
    """Forty questions: 3→4 gains, 4→5 and 5→6 harm, half of 4→5 by too long a step, 5→6 by its direction."""
    paths = synthetic.Paths.of
    run = run_of(
        tmp_path,
        synthetic,
        t3=paths(np.full(40, 0.5), -0.1),
        t4=paths(np.tile([0.2, -0.2], 20), -1.0),
        t5=paths(np.full(40, -0.3), -1.0),
    )
    # φ(α) = 0.2 α − α²: the quadratic step α = 0.1 gains 0.01.
    assert first_finding(run) == Finding("4→5", "solution", questions=40, harmful=40, failures=20, predicted=20)
    _, _, *lines, legend = run_lines(run)
    counts = [["0", "0", "0", "of", "0"], ["40", "20", "20", "of", "20"], ["40", "0", "0", "of", "0"]]
    assert [line.split()[-5:] for line in lines] == counts
    assert "4→5     40  -1.00000 [" in lines[1]
    assert "predicted step length" in legend
