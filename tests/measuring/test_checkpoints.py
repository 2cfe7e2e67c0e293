"""Several models in one command: which they are, that each run is what a call of its own gives, what is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from loopscope.api import configurations
from loopscope.cli.app import exit_code
from loopscope.errors import LoopscopeError
from loopscope.store.run import runs_at


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


def command(models: str, output: Path, *more: str) -> list[str]:
    flags = ["--tasks", "arithmetic", "--limit", "4", "--transitions", "2", "--level", "quick", "--device", "cpu"]
    return ["measure", "--model", models, *flags, "--output", str(output), *more]


@pytest.fixture(scope="module")
def series(trained, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("series") / "over-time"
    assert exit_code(command(f"{trained}/step-*", output)) == 0
    return output


def test_a_stopped_series_goes_on_with_the_same_command(series, trained, tmp_path, capsys):
    broken, output = tmp_path / "ckpt", tmp_path / "over-time"
    shutil.copytree(trained, broken)
    weights = (broken / "step-100" / "model.safetensors").read_bytes()
    (broken / "step-100" / "model.safetensors").write_bytes(weights[:-4])
    assert exit_code(command(f"{broken}/step-*", output)) == 2
    assert [path.name for path in runs_at(output)] == ["step-9", "step-10"]
    (broken / "step-100" / "model.safetensors").write_bytes(weights)
    capsys.readouterr()
    assert exit_code(command(f"{broken}/step-*", output)) == 0
    said = capsys.readouterr()
    assert said.err.count("is finished: opened as it is, nothing measured") == 2
    assert "model 3 of 3" in said.err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("org/a,org/b", {"org/a": "a", "org/b": "b"}),
        ("one/x, two/x", {"one/x": "one-x", "two/x": "two-x"}),
        ("toy-ouro,toy-huginn", {"toy-ouro": "toy-ouro", "toy-huginn": "toy-huginn"}),
    ],
)
def test_several_models(given, expected, tmp_path):
    found = configurations({"model": given, "tasks": "arithmetic", "output": tmp_path})
    assert {each.model: Path(each.output).name for each in found} == expected


def test_what_is_refused(series, trained, tmp_path):
    for given, line in [
        ({"model": "a,a", "output": tmp_path}, "model= names 'a' and another of the same name"),
        ({"model": "nowhere/at/all/step-*"}, "no folder fits model='nowhere/at/all/step-*': name folders that exist"),
        ({"model": "a,b"}, "2 models need a folder for their runs: give output="),
        ({"model": "a,b", "output": series / "step-9"}, "is a run directory, and 2 models need a folder of runs"),
    ]:
        with pytest.raises(LoopscopeError, match=re.escape(line)):
            configurations({"tasks": "arithmetic", **given})
