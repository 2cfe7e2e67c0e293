"""The programs in research/data make the rows of the embedded tasks."""

from __future__ import annotations

import gzip
from itertools import islice

import pytest

from loopscope.tasks.known_tasks import EMBEDDED_TASKS, FOLDER
from research.data import make
from research.data.arithmetic import problem
from research.data.problem import LITERAL, apply, split_of

FILES = [(task, split) for task in make.WRITERS for split in EMBEDDED_TASKS[task].splits]


@pytest.mark.parametrize(("task", "split"), FILES)
def test_first_rows_are_made_again(task: str, split: str) -> None:
    with gzip.open(FOLDER / f"{task}-{split}.jsonl.gz", "rt") as file:
        assert list(make.lines(task, split, 25)) == list(islice(file, 25))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "split"), FILES)
def test_files_are_made_again_byte_for_byte(task: str, split: str) -> None:
    made = "".join(make.lines(task, split, EMBEDDED_TASKS[task].splits[split])).encode()
    assert made == gzip.decompress((FOLDER / f"{task}-{split}.jsonl.gz").read_bytes())


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_problems_are_right_and_belong_to_their_split(split: str) -> None:
    for index in range(200):
        made = problem(split, index)
        assert split_of(made.story) == split
        assert made.solution.count("\n") == made.operations == 2 + index % 5
        used = {source for step in made.steps for source in (step.left_from, step.right_from)}
        assert used - {LITERAL} == set(range(made.operations - 1))
        assert all(apply(step.op, step.left, step.right) == step.result for step in made.steps)
