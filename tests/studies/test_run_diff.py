"""Two runs on the same questions: pairing, paired intervals, conditions, and how the command ends."""

import json

import numpy as np
import pytest
from scipy import stats as scipy_stats

import loopscope as ls
from loopscope.cli.app import exit_code
from loopscope.errors import LoopscopeError, command_line_words
from loopscope.path import Outcome
from loopscope.stats import Bootstrap, Difference, Mean, Ratio
from loopscope.stats import bootstrap as estimate
from loopscope.studies.limits import parse_limits
from loopscope.studies.metrics import NAMES

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


def metric(found, name, at=0):
    return next(row for row in found.updates[at].rows if row.key == name)


@pytest.mark.parametrize("name", ["gain", "share", "quarter_recovery", "sign_quadratic"])
def test_intervals_are_those_of_scipys_paired_bootstrap(two, name):
    found = ls.diff(*two)
    (update,) = found.updates
    sides = [side.updates for side in (update.pair.first, update.pair.second)]

    def value(side, chosen):
        gain, slope = side.gain[chosen], side.slope[chosen]
        failing = (gain < 0) & (slope > 0)
        match name:
            case "gain":
                return gain.mean(-1)
            case "share":
                return failing.sum(-1) / (gain < 0).sum(-1)
            case "quarter_recovery":
                return (failing & (slope / 4 + side.quadratic[chosen] / 16 > 0)).sum(-1) / failing.sum(-1)
        return (np.sign(slope + side.quadratic[chosen]) == np.sign(gain)).mean(-1)

    def statistic(places, axis=-1):
        return value(sides[1], places) - value(sides[0], places)

    expected = scipy_stats.bootstrap(
        (np.arange(80),), statistic, n_resamples=2000, method="percentile", rng=np.random.default_rng(20260904)
    ).confidence_interval
    difference = metric(found, name).difference
    assert difference.value == pytest.approx(statistic(np.arange(80)), abs=1e-12)
    assert (difference.interval.low, difference.interval.high) == pytest.approx(
        (expected.low, expected.high), abs=1e-12
    )


def test_a_difference_pairs_records_and_is_undefined_where_one_side_is():
    first, second = np.array([1.0, 5.0, 9.0]), np.array([1.5, 5.5, 9.5])
    found = estimate(Difference(Mean(first), Mean(second)))
    # Every question gains half a nat, whichever are drawn: paired, that is certain.
    assert (found.value, found.interval.low, found.interval.high) == pytest.approx((0.5, 0.5, 0.5))
    assert Difference(Ratio([0], [0]), Ratio([1], [1])).value() is None
    with pytest.raises(ValueError, match="cannot be paired"):
        Difference(Mean([1.0]), Mean([1.0, 2.0]))


def test_a_run_does_not_differ_from_itself(two):
    found = ls.diff(two[0], two[0], bootstrap=FEW)
    assert [update.pair.transition for update in found.updates] == [3, 4]
    assert all(row.difference.value in (0.0, None) for row in found.rows)
    assert not any(update.changed for update in found.updates)
    assert found.settings == []
    assert "all settings are the same" in str(found)


def test_changed_outcomes_are_named(run):
    first = run("first", [0.5, 0.5, -0.5, 0.5], [-1.0, -0.1, -0.1, -1.0])
    second = run("second", [0.5, 0.5, 0.5, -0.5], [-0.1, -0.1, -1.0, -1.0])
    (update,) = ls.diff(first, second, bootstrap=FEW).updates
    assert [(each.example_id, each.first, each.second) for each in update.changed] == [
        ("sums-00000", Outcome.FINITE_STEP_FAILURE, Outcome.PROGRESSING),
        ("sums-00002", Outcome.DIRECTIONAL_FAILURE, Outcome.FINITE_STEP_FAILURE),
        ("sums-00003", Outcome.FINITE_STEP_FAILURE, Outcome.DIRECTIONAL_FAILURE),
    ]
    assert update.difference("changed").value == 0.75
    assert update.difference("share").value == pytest.approx(1 / 2 - 2 / 3)


def test_questions_are_paired_by_name_not_by_place(run):
    """The second run has fewer questions and lacks the first of them."""
    first = run("first", [0.1, 0.2, 0.3, 0.4], -0.1)
    second = run("second", [0.2, 0.3], -0.1)
    found = ls.diff(first, second, bootstrap=FEW)
    assert found.sets[0].said() == "sums test: 2 questions in both runs; left out: 2 only in the first run"
    # Names are by place in these made-up runs: sums-00000 and sums-00001 are in both.
    assert metric(found, "slope").first.value == pytest.approx(0.15)
    assert metric(found, "slope").second.value == pytest.approx(0.25)


def test_settings_that_differ_are_listed_and_allowed(run, synthetic):
    first = run("first", [0.5, 0.2], -0.3)
    second = run("second", [0.5, 0.2], -0.3, model={"name": "other", "spec": "other", "dtype": "bfloat16"})
    found = ls.diff(first, second, bootstrap=FEW)
    assert {each.field for each in found.settings} >= {"model.name", "model.spec", "model.dtype"}
    assert "model.name: toy-ouro → other" in str(found)


def test_what_cannot_be_paired_is_one_line(run):
    first = run("first", [0.5], [-1.0])
    others = {
        r"no task is in both runs: the first has sums/test, the second more/test": run("a", [0.5], [-1.0], task="more"),
        r"sums: no update is in both runs: the first has 4→5, the second 2→3": run("b", [0.5], [-1.0], (2,)),
    }
    for said, other in others.items():
        with pytest.raises(LoopscopeError, match=said):
            ls.diff(first, other)
    with pytest.raises(LoopscopeError, match=r"tasks='more' is not in both runs"):
        ls.diff(first, first, tasks="more")
    with pytest.raises(LoopscopeError, match=r"no update of those asked for \(7→8\)"):
        ls.diff(first, first, transitions=7)


def test_other_words_under_the_same_name_are_not_paired(run, synthetic, monkeypatch):
    first = run("first", [0.5, 0.2], [-1.0, -1.0])
    examples = synthetic.MAKERS["examples"]

    def reworded(*given):
        columns = examples(*given)
        return columns | {"reference": [f"{text} indeed" for text in columns["reference"]]}

    monkeypatch.setitem(synthetic.MAKERS, "examples", reworded)
    second = run("second", [0.5, 0.2], [-1.0, -1.0])
    with pytest.raises(LoopscopeError, match="2 questions have the same identifier and another reference"):
        ls.diff(first, second)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("share > +0.02", ["share > +0.02"]),
        ("share>.02,gain.high<=-1e-3", ["share > +0.02", "gain.high <= -0.001"]),
        (["share > 0.02", "changed >= 0.1"], ["share > +0.02", "changed >= +0.1"]),
        (["share", ">", "0.02", "gain", "<", "0"], ["share > +0.02", "gain < +0"]),
        ("Share.LOW > −1", ["share.low > -1"]),
    ],
)
def test_conditions_are_read(text, read):
    assert [str(limit) for limit in parse_limits(text)] == read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shar > 0.02", "did you mean share"),
        ("share == 0.02", "write NAME OP NUMBER"),
        ("share > 0.02.1", "is no condition"),
        ("share > inf", "is no condition"),
        ("share > 0.02 gain", "'gain' is no condition"),
        ("share.mean > 0", r"write share.low or share.high"),
        ("", "holds no condition"),
        ("__import__('os') > 1", "is no condition"),
        ("share > 1 " * 300, "at most 2,000"),
        (5, "is no text"),
    ],
)
def test_what_is_no_condition_is_refused_with_the_names(text, said):
    with command_line_words(), pytest.raises(LoopscopeError, match=said) as caught:
        parse_limits(text)
    assert "\n" not in str(caught.value)
    if "did you mean" in said:
        assert all(name in str(caught.value) for name in NAMES)


def test_the_ends_of_an_interval_can_be_asked_for(two):
    found = ls.diff(*two)
    interval = metric(found, "gain").difference.interval
    middle = metric(found, "gain").difference.value
    assert interval.low < middle < interval.high
    (low, value, high) = found.check(f"gain.low > {middle} gain > {middle - 1e-9} gain.high > {middle}")
    assert (low.met, value.met, high.met) == (False, True, True)
    assert (low.value, high.value) == (interval.low, interval.high)


def test_a_condition_without_a_value_is_told_and_does_not_fail(run):
    """No update of the first run is harmful, so its share is not defined."""
    found = ls.diff(run("a", [0.5], [-0.1]), run("b", [0.5], [-1.0]), fail_if="share > 0", bootstrap=FEW)
    assert [check.met for check in found.checks] == [None]
    assert not found.failed
    assert "passed: no condition is met (1 of 1 not decided)" in str(found)


def test_a_condition_on_what_the_runs_lack_is_a_mistake(run):
    quick = run("quick", [0.5, 0.1], [-1.0, -0.1], level="quick")
    with pytest.raises(LoopscopeError, match="quarter_recovery is not in both runs: measure both with level='grid'"):
        ls.diff(quick, quick, fail_if="quarter_recovery < 0")
    with pytest.raises(LoopscopeError, match="accuracy is not in both runs: it is about tasks with options"):
        ls.diff(quick, quick, fail_if="accuracy < 0")


def test_accuracy_is_that_after_the_update(run, synthetic, tmp_path):
    chosen = np.array([[0, 0, 1], [0, 0, 0]])
    runs = []
    for name, picked in (("a", chosen), ("b", 1 - chosen)):
        task = synthetic.Task(
            "choices", {2: synthetic.Paths.of([0.5, 0.5], [-1.0, -1.0])}, kind="options", chosen=picked
        )
        runs.append(synthetic.write_run(tmp_path / f"options-{name}", [task], depths=(1, 2, 3)))
    row = metric(ls.diff(*runs, bootstrap=FEW), "accuracy")
    # The first option is right: after the update the first run chooses it once, the second once.
    assert (row.first.value, row.second.value) == (0.5, 0.5)


def test_the_command_passes_fails_and_refuses(two, tmp_path, capsys):
    first, second = (str(run.path) for run in two)
    summary = tmp_path / "new" / "diff.json"
    assert exit_code(["diff", first, second, "--fail-if", "gain > 100"]) == 0
    assert "passed: no condition is met" in capsys.readouterr().out
    code = exit_code(["diff", first, second, "--fail-if", "gain > -100", "--output", str(summary)])
    assert (code, "failed: 1 of 1 conditions met" in capsys.readouterr().out) == (1, True)
    read = json.loads(summary.read_text())
    assert read["failed"] is True
    assert read["fail_if"][0]["condition"] == "gain > -100"
    (update,) = read["updates"]
    assert update["metrics"]["gain"]["difference"]["value"] == pytest.approx(
        two[1].records.filter(transition=4)["gain"].mean() - two[0].records.filter(transition=4)["gain"].mean()
    )
    assert exit_code(["diff", first, second, "--fail-if", "nonsense > 1"]) == 2
    assert exit_code(["diff", first]) == 2
    assert exit_code(["diff", first, str(tmp_path / "nowhere")]) == 2
    assert exit_code(["diff", first, second, "--output", str(tmp_path)]) == 2


@pytest.mark.parametrize("format", ["text", "markdown", "latex", "csv", "json"])
def test_every_format(two, capsys, format):
    assert exit_code(["diff", *(str(run.path) for run in two), "--format", format]) == 0
    assert "sign" in capsys.readouterr().out


def test_the_terminal_has_eighty_columns(two):
    written = str(ls.diff(*two, bootstrap=FEW)).splitlines()
    assert max(map(len, written[2:])) <= 80  # after the two lines with the folders


def test_python_shows_itself(two):
    found = ls.diff(*two, bootstrap=FEW)
    assert "<table" in found._repr_html_()
    assert found.to_polars().height == len(found.rows)
    assert len(repr(found)) < 120
