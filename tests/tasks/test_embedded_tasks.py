"""The rows that come with the package: as many as are listed, the same as ever, and right."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from loopscope.tasks import load_task
from loopscope.tasks.known_tasks import EMBEDDED_TASKS, FOLDER

HASHES = {
    "arithmetic:test": "305721d82a18d39f01010e1b7146354e83a9d2f3f97de02392c01fd266239773",
    "arithmetic:validation": "f9640721157092638180d5d1a733802e57a90b092fcaf30b6dad90d6541a02cf",
    "arithmetic:train": "38fc29e990f5b289d1fbca35647c1a2a5fef057fd12d9d51fa23c480acffddc7",
    "arithmetic-mc:test": "84696feea032638abcd4d0371d34aa7b1e472c3441b672187a2dddc1976361f7",
    "arithmetic-mc:validation": "f7c3193f232c29e4e7cbfaa63adb20035256db959bc1672a58fb7a245f763dd9",
    "arithmetic-mc:train": "749ac68b7886dc19d65cc797c4257c028c6ad62fb31b2d5ba869a6c73bcee2a3",
    "stories:test": "042e2a79bc2e7a844cfacaae2979be34c85707caa916a1712874e4aafdbce379",
    "stories:validation": "a02246b0978f05ce709f761f6076c2a63ae1156a099c34d9c1b805b5ed4da524",
    "stories:train": "2c8acb140e20a495558f51aded81b6e20628ca21368a41f16de227edca487d2c",
}
"""Of the first 500 rows of every split: they never change."""


@pytest.mark.parametrize("spec", HASHES)
def test_rows_never_change(spec: str) -> None:
    assert load_task(spec, limit=500).data_hash == HASHES[spec]


@pytest.mark.parametrize("spec", HASHES)
def test_files_have_the_listed_rows(spec: str) -> None:
    name, split = spec.split(":")
    count = EMBEDDED_TASKS[name].splits[split]
    rows = load_task(spec).rows
    assert [(row.id, row.source_row) for row in rows] == [(f"{split}-{index}", index) for index in range(count)]


def test_files_are_small_and_hold_no_time() -> None:
    files = list(FOLDER.iterdir())
    assert len(files) == 6
    assert sum(file.stat().st_size for file in files) < 3_000_000
    assert all(file.read_bytes()[4:8] == bytes(4) for file in files)


def test_solutions_and_options_have_the_same_right_answer() -> None:
    places = Counter()
    for worked, choice in zip(load_task("arithmetic").rows, load_task("arithmetic-mc").rows, strict=True):
        solution = worked.continuations[0]
        for left, operation, right, result in re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", solution):
            a, b = int(left), int(right)
            assert int(result) == {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operation]
        assert solution.endswith(f"\nAnswer: {worked.metadata['result']}")
        assert solution.count("\n") == worked.metadata["difficulty"]
        assert worked.context.startswith(choice.context.removesuffix("\nAnswer:"))
        assert len(set(choice.continuations)) == 4
        assert choice.continuations[choice.answer] == f" {worked.metadata['result']}"
        assert choice.metadata == worked.metadata
        places[choice.answer] += 1
    assert set(places.values()) == {1250}


def test_stories_score_three_of_four() -> None:
    for row in load_task("stories").rows:
        assert row.context.count("\n") == 2
        assert row.continuations[0].count("\n") == 2
        assert row.metadata == {"stories": 3}
    assert len({row.continuations for split in ("test", "train") for row in load_task(f"stories:{split}").rows}) == 2500
