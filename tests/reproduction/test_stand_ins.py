"""Stand-ins for the benchmarks: they load as these do, are as long as the table says, and stay with random weights."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from loopscope.cli.app import exit_code
from loopscope.models.tokenizer import load_tokenizer
from loopscope.reproduction.reproduce import paper_runs
from loopscope.reproduction.stand_ins import TOKENIZER, write_stand_ins
from loopscope.tasks.known_tasks import BENCHMARKS
from loopscope.tasks.load import load_task

LENGTHS = tomllib.loads(files("loopscope.reproduction").joinpath("stand_ins.toml").read_text(encoding="utf-8"))


def test_there_are_stand_ins_for_every_run() -> None:
    assert set(LENGTHS) == set(BENCHMARKS) == {task.partition(":")[0] for run in paper_runs() for task in run.tasks}


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_they_load_and_are_as_long_as_the_benchmark(name: str, tmp_path: Path) -> None:
    split = BENCHMARKS[name].default_split
    write_stand_ins(tmp_path, [f"{name}:{split}"])
    (task,) = [load_task(f"{name}:{split}", data_dir=str(tmp_path), limit=400)]
    tokenizer, given = load_tokenizer(TOKENIZER), LENGTHS[name][0]
    examples = [task.encode_row(tokenizer, row) for row in task.rows]
    assert {len(example.sequences) for example in examples} == {given.get("options", 1)}
    sequences = [sequence for example in examples for sequence in example.sequences]
    prompts = np.array([sequence.positions[0] + 1 for sequence in sequences])
    answers = np.array([len(sequence.targets) for sequence in sequences])
    assert prompts.mean() == pytest.approx(given["prompt"], rel=0.15)
    assert answers.mean() == pytest.approx(given.get("answer", 1), rel=0.15, abs=0.6)
    if "answer_spread" in given:
        assert np.log(answers).std() == pytest.approx(given["answer_spread"], rel=0.3)


def test_a_subset_asks_for_its_whole_split(tmp_path: Path) -> None:
    write_stand_ins(tmp_path, ["commonsense_qa:train1024"])
    (task,) = [load_task("commonsense_qa:train1024", data_dir=str(tmp_path))]
    assert len(task.rows) == 1024


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--stand-ins means words without meaning: give --random-weights as well"),
        (("--random-weights", "--data-dir", "data"), "--data-dir has the benchmarks: leave out --stand-ins"),
    ],
)
def test_a_mistake_is_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["reproduce", "--stand-ins", "--plan", "--output", str(tmp_path / "out"), *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
