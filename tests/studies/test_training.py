"""The study of a training: runs in the order of their steps, intervals, and the same from the log of a monitor."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from loopscope.cli.app import exit_code
from loopscope.errors import LoopscopeError
from loopscope.report import write_report
from loopscope.stats import Bootstrap
from loopscope.studies import figure, open_records, table

QUICK = Bootstrap(resamples=200)
STEPS = (9, 10, 1000)


def paths_at(synthetic, step):
    """Finite-step failures that become more with the steps: at 1000 half of twelve questions."""
    rng = np.random.default_rng(step)
    slope = rng.normal(0.4, 0.2, 12)
    quadratic = np.where(np.arange(12) < 6 * math.log10(step) / 3, -2.0, -0.1) * np.abs(slope)
    return synthetic.Paths.of(slope, quadratic)


@pytest.fixture(scope="module")
def series(tmp_path_factory, synthetic):
    """Three runs of one training, whose folder lists them in another order than their steps."""
    folder = tmp_path_factory.mktemp("training") / "over-time"
    for step in STEPS:
        task = synthetic.Task("sums", {3: synthetic.realistic(12, step), 4: paths_at(synthetic, step)})
        model = {"spec": f"runs/step-{step}", "name": f"step-{step}", "toy": False, "trained_depth": 4}
        synthetic.write_run(folder / f"step-{step}", [task], level="grid", model=model, settings={})
    return folder


def test_steps_come_in_order_and_numbers_are_those_of_the_questions(series, synthetic):
    rows = [row for row in table("training", series, QUICK).rows if row.condition.transition == 4]
    assert [row["step"] for row in rows] == list(STEPS)
    for row in rows:
        paths = paths_at(synthetic, row["step"])
        gain = paths.A + paths.Q
        assert row["gain"].value == pytest.approx(gain.mean())
        assert row["slope"].value == pytest.approx(paths.A.mean())
        assert row["accumulated_curvature"].value == pytest.approx(paths.Q.mean())
        failures = (paths.A > 0) & (gain < 0)
        assert row["finite_step"].value == pytest.approx(failures.mean())
        shares = (row["finite_step"], row["directional"], row["neutral"], row["progressing"])
        assert sum(share.value for share in shares) == pytest.approx(1.0)
        expected = stats.bootstrap(
            (gain,), np.mean, n_resamples=200, method="percentile", rng=np.random.default_rng(QUICK.seed)
        ).confidence_interval
        assert (row["gain"].interval.low, row["gain"].interval.high) == pytest.approx((expected.low, expected.high))
    assert rows[-1]["finite_step"].value == 0.5


def test_runs_without_a_step_are_named_with_the_remedy(series, synthetic, tmp_path):
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])})
    alone = synthetic.write_run(tmp_path / "unknown", [task], settings={})
    both = table("training", [series, alone], QUICK)
    assert len(both.rows) == 6
    assert any("without a training step: unknown (measure with a checkpoint" in note for note in both.notes)
    nothing = table("training", alone, QUICK)
    assert nothing.rows == ()
    assert "no run has a training step" in nothing.notes[-1]
    assert "no run has a training step" in figure("training", alone, QUICK).caption


def test_two_trainings_are_two(series, synthetic, tmp_path):
    task = synthetic.Task("sums", {4: synthetic.Paths.of([0.5, 0.1], [-1.0, 0.0])})
    model = {"spec": "other/step-10", "name": "step-10", "toy": False}
    synthetic.write_run(tmp_path / "other" / "step-10", [task], model=model, settings={})
    rows = table("training", [series, tmp_path / "other"], QUICK).rows
    steps = {name: sorted({row["step"] for row in rows if row["series"] == name}) for name in ("over-time", "other")}
    assert steps == {"over-time": [9, 10, 1000], "other": [10]}


@pytest.fixture
def log(series, tmp_path):
    """What a monitor would have written of the same questions: means and standard errors, worked out here."""
    header = {"format": "loopscope-monitor", "version": 1, "loopscope": "0", "model": "mine", "family": "ouro"}
    header |= {"trained_depth": 4, "transitions": [3, 4], "depths": [3, 4, 5], "every": 10}
    lines = [header | {"tasks": [{"name": "sums", "split": "test", "questions": 12}]}]

    def told(name, values):
        return {name: values.mean(), f"{name}_se": values.std(ddof=1) / math.sqrt(len(values))}

    for run in open_records(series).runs:
        step = int(run.manifest.model.name.removeprefix("step-"))
        for (depth,), rows in run.depths.group_by("depth", maintain_order=True):
            values = told("utility", rows["utility"].to_numpy())
            lines.append({"kind": "depth", "step": step, "task": "sums", "depth": depth, "questions": 12, **values})
        for (transition,), rows in run.records.group_by("transition", maintain_order=True):
            gain, slope = rows["gain"].to_numpy(), rows["slope"].to_numpy()
            shares = {"neutral": gain == 0, "progressing": gain > 0}
            shares |= {"finite_step": (slope > 0) & (gain < 0), "directional": (slope <= 0) & (gain < 0)}
            values = {"share": None, "share_se": None} | told("utility_after", rows["utility_after"].to_numpy())
            values |= told("gain", gain) | told("slope", slope) | told("accumulated_curvature", gain - slope)
            for name, inside in shares.items():
                values |= told(name, inside * 1.0)
            lines.append(
                {"kind": "update", "step": step, "task": "sums", "transition": transition, "questions": 12, **values}
            )
        lines.append({"kind": "call", "step": step, "questions": 12, "positions": 99, "seconds": 0.1})
    path = tmp_path / "monitor.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_log_gives_the_same_values_and_intervals_from_standard_errors(series, log):
    stored, told = (table("training", source, Bootstrap()) for source in (series, log))
    by_key = {(row.condition.transition, row["step"]): row for row in stored.rows}
    assert len(told.rows) == len(stored.rows)
    for row in told.rows:
        other = by_key[row.condition.transition, row["step"]]
        for name in ("gain", "slope", "accumulated_curvature", "finite_step", "utility", "best_depth", "best_utility"):
            assert row[name].value == pytest.approx(other[name].value), name
        half = (row["gain"].interval.high - row["gain"].interval.low) / 2
        assert half == pytest.approx((other["gain"].interval.high - other["gain"].interval.low) / 2, rel=0.25)
        assert row["share"].value is None
        assert row["best_depth"].interval is None
    assert any("a monitor's log holds means" in note for note in told.notes)
    drawn = figure("training", log)
    assert drawn.inputs[0]["log"] == "monitor.jsonl"
    assert len(drawn.shown["rows"]) == 6


def test_the_command_line_reads_logs(log, tmp_path, capsys):
    assert exit_code(["tables", str(log), "--name", "training"]) == 0
    assert "finite-step" in capsys.readouterr().out.lower()
    assert exit_code(["figures", str(log), "--name", "training", "--output", str(tmp_path), "--format", "png"]) == 0
    assert (tmp_path / "training.png").stat().st_size > 10_000
    capsys.readouterr()
    assert exit_code(["tables", str(log)]) == 2
    assert "choose --name training" in capsys.readouterr().err
    with pytest.raises(LoopscopeError, match="a monitor's log"):
        write_report([log], tmp_path / "report.html")
