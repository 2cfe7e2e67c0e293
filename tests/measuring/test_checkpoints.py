"""Several models in one call: which they are, that each run is what a call of its own gives, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import loopscope as ls
from loopscope.cli.app import exit_code
from loopscope.errors import LoopscopeError
from loopscope.measuring.checkpoints import checkpoints
from loopscope.store import StoredRun
from loopscope.store.manifest import step_in, training_step
from loopscope.store.run import runs_at
from loopscope.tasks.encoding import LoadedTask

PASS = {"limit": 4, "transitions": [2], "depths": [0, 4], "level": "quick", "device": "cpu", "progress_style": "none"}


@pytest.fixture(scope="module")
def trained(checkpoint, tmp_path_factory) -> Path:
    """A folder with three checkpoints, step-9, step-10 and step-100, whose heads differ, and a file beside them."""
    folder = tmp_path_factory.mktemp("trained")
    for place, step in enumerate((9, 10, 100)):
        target = folder / f"step-{step}"
        shutil.copytree(checkpoint("ouro"), target)
        tensors = load_file(target / "model.safetensors")
        tensors["lm_head.weight"] *= 1.0 + 0.25 * place
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (folder / "step-notes.txt").write_text("no checkpoint")
    return folder


@pytest.fixture(scope="module")
def series(trained, tmp_path_factory) -> list[ls.Run]:
    output = tmp_path_factory.mktemp("series") / "over-time"
    return ls.measure([trained / "step-*"], "arithmetic", output=output, **PASS)


def test_each_run_is_that_of_a_call_of_its_own(series, trained, tmp_path, contents):
    assert [training_step(run.manifest) for run in series] == [9, 10, 100]
    assert [run.path.name for run in series] == ["step-9", "step-10", "step-100"]
    alone = ls.measure(trained / "step-10", "arithmetic", output=tmp_path / "alone", **PASS)
    assert contents(alone.path) == contents(series[1].path)
    assert series[0].records["gain"].to_list() != series[1].records["gain"].to_list()


def test_a_stopped_series_goes_on_with_the_same_call(series, trained, tmp_path, contents):
    broken, output = tmp_path / "ckpt", tmp_path / "over-time"
    shutil.copytree(trained, broken)
    weights = (broken / "step-100" / "model.safetensors").read_bytes()
    said: list[str] = []

    def stopping(line: str) -> None:
        said.append(line)
        if line.startswith("model 3"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ls.measure(str(broken / "step-*"), "arithmetic", output=output, **PASS, notify=stopping)
    assert [path.name for path in runs_at(output)] == ["step-9", "step-10"]
    (broken / "step-100" / "model.safetensors").write_bytes(weights[:-4])
    with pytest.raises(LoopscopeError, match=r"step-100 \(3 of 3\): .*model\.safetensors"):
        ls.measure(str(broken / "step-*"), "arithmetic", output=output, **PASS)
    (broken / "step-100" / "model.safetensors").write_bytes(weights)
    said.clear()
    found = ls.measure([str(broken / "step-*")], "arithmetic", output=output, **PASS, notify=said.append)
    assert len([line for line in said if line.endswith("is finished: nothing to measure")]) == 2
    for one, other in zip(found, series, strict=True):
        same = {name: data for name, data in contents(one.path).items() if name.endswith(".parquet")}
        assert same
        assert same == {name: data for name, data in contents(other.path).items() if name.endswith(".parquet")}


def test_a_row_is_encoded_once_for_all_models(trained, tmp_path, monkeypatch):
    encoded: list[str] = []
    plain = LoadedTask.encode_row

    def counted(self, tokenizer, row):
        encoded.append(row.id)
        return plain(self, tokenizer, row)

    monkeypatch.setattr(LoadedTask, "encode_row", counted)
    ls.measure([trained / "step-*"], ["arithmetic"], output=tmp_path / "once", **PASS)
    assert len(encoded) == len(set(encoded)) == PASS["limit"]


def test_a_plan_is_the_sum_over_the_models(trained):
    together = ls.plan(str(trained / "step-*"), "arithmetic", seconds=0.1, **PASS)
    one = ls.plan(str(trained / "step-9"), "arithmetic", seconds=0.1, **PASS)
    assert together.tasks == {"arithmetic": 3 * 4}
    assert (together.tokens, together.batches) == (3 * one.tokens, 3 * one.batches)
    assert together.disk == pytest.approx(3 * one.disk, rel=0.2)
    assert together.seconds > 0
    assert str(together).splitlines()[0] == "model      step-9, step-10, step-100"


def test_the_command_line_measures_and_sums_up(trained, tmp_path, capsys):
    flags = ["--tasks", "arithmetic", "--limit", "3", "--transitions", "2", "--device", "cpu", "--progress", "none"]
    listed = ",".join(str(trained / name) for name in ("step-100", "step-9"))
    output = tmp_path / "listed"
    assert exit_code(["measure", "--model", listed, *flags, "--output", str(output)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"2 runs in {output}. Next: loopscope tables {output} --name training")
    assert [line for line in said.err.splitlines() if "model 1 of 2" in line]
    assert [path.name for path in runs_at(output)] == ["step-9", "step-100"]
    assert exit_code(["measure", "--model", str(trained / "epoch-*"), *flags, "--output", str(output)]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "no folder fits" in said.err


def test_names_that_tell_no_step(trained, checkpoint, tmp_path):
    for name in ("early", "late"):
        shutil.copytree(trained / "step-9", tmp_path / "ckpt" / name)
    models = [tmp_path / "ckpt" / name for name in ("early", "late")]
    found = ls.measure(models, "arithmetic", output=tmp_path / "a", **PASS)
    assert [training_step(run.manifest) for run in found] == [None, None]
    given = ls.measure(models, "arithmetic", output=tmp_path / "b", **PASS, training_step=[5, 70])
    assert [training_step(run.manifest) for run in given] == [5, 70]
    assert json.loads((tmp_path / "b" / "late" / "manifest.json").read_text())["settings"]["training_step"] == 70


def test_an_older_run_tells_its_step_by_its_specification(series):
    stored = StoredRun(series[2].path).manifest
    settings = {name: value for name, value in stored.settings.items() if name != "training_step"}
    assert training_step(stored.model_copy(update={"settings": settings})) == 100


@pytest.mark.parametrize(
    ("model", "revision", "expected"),
    [
        ("org/name", "main,step1000", [("org/name@main", "main", None), ("org/name@step1000", "step1000", 1000)]),
        (["org/a", "org/b"], None, [("org/a", "a", None), ("org/b", "b", None)]),
        (["one/x", "two/x"], None, [("one/x", "one-x", None), ("two/x", "two-x", None)]),
        ("toy-ouro,toy-huginn", None, [("toy-ouro", "toy-ouro", None), ("toy-huginn", "toy-huginn", None)]),
    ],
)
def test_lists(model, revision, expected):
    assert checkpoints(model, revision) == expected


def test_one_model_is_no_series(tmp_path):
    (tmp_path / "step-[9]*").mkdir()
    for model in ("toy-ouro", str(tmp_path / "step-[9]*"), object()):
        assert checkpoints(model, "main") is None


@pytest.mark.parametrize(
    ("model", "rest", "line"),
    [
        (["a", "b"], {"revision": ["x", "y"]}, "revision= names 2 revisions and model= 2 models"),
        (["a", "a"], {}, "model= names 'a' twice: name each model once"),
        ([], {}, "model= is an empty list: name one or more models"),
        ("org/x", {"revision": "step*"}, "revision='step*' is a pattern: list revisions by name"),
        (["a", "b"], {"steps": "5"}, "training_step= names 1 steps for 2 models: name one for each in order"),
        (["a", "b"], {"steps": "5,x"}, "training_step='x' is not a whole number: give a step, e.g. 1000"),
        ("nowhere/at/all/step-*", {}, "no folder fits model='nowhere/at/all/step-*': name folders that exist"),
    ],
)
def test_what_is_refused(model, rest, line):
    with pytest.raises(LoopscopeError, match=re.escape(line)):
        checkpoints(model, **rest)


def test_a_run_directory_is_no_folder_of_runs(series, trained):
    with pytest.raises(LoopscopeError, match="is a run directory, and 3 models need a folder of runs"):
        ls.measure(str(trained / "step-*"), "arithmetic", output=series[0].path, **PASS)


@pytest.mark.parametrize(
    ("name", "step"),
    [("step_0000400", 400), ("iter-12", 12), ("x/global_step1000", 1000), ("r@step2000", 2000), ("stepping-3", None)],
)
def test_steps_in_names(name, step):
    assert step_in(name) == step
