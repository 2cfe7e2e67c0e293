"""Wrong settings, given in Python and as flags: one line in the caller's words."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loopscope.api import measure
from loopscope.cli.app import exit_code
from loopscope.errors import LoopscopeError, shown
from loopscope.measuring.config import limits, rows, task_list
from loopscope.store import StoredRun

ENOUGH: dict[str, Any] = {"transitions": [1], "limit": 1, "device": "cpu"}

BAD_IN_PYTHON: list[tuple[dict[str, Any], str]] = [
    ({"transitions": [-1]}, "transitions=-1 is too small: give a number from 0 to 10,000"),
    ({"transitions": "4 5"}, "transitions='4 5': '4 5' is not a number or a range"),
    ({"transitions": "1-1000000000"}, "1000000000 is too large: 10,000 is the largest"),
    ({"transitions": {1: 2}}, "transitions={1: 2} is not a number or a list of numbers"),
    ({"transitions": itertools.count()}, "transitions=10001 is too large"),
    ({"level": "ful"}, "level='ful' is not known: did you mean full?"),
    ({"tokens": True, "transitions": [], "depths": [1]}, "tokens=True is about updates: name some with transitions="),
    ({"trace": True, "transitions": [], "depths": [0]}, "trace=True follows the loops: name a depth from 1 on"),
    ({"lens": 101}, "lens=101: Input should be less than or equal to 100"),
    ({"tokens": "no"}, "tokens='no': Input should be a valid boolean"),
    ({"batch_size": "many"}, "batch_size='many' is not a number of questions"),
    ({"batch_size": 0}, "batch_size=0 is too small"),
    ({"batch_size": ""}, "batch_size='' is not a number of questions"),
    ({"batch_size": "paper", "protocol": "loopscope:unit_size=3"}, "unit_size=3 must be even"),
    ({"model_args": {"exit_threshold": 1.5}}, "exit_threshold=1.5: Input should be less than or equal to 1"),
    ({"long": "cut"}, "long='cut' is not known: choose error, skip, truncate-left"),
    ({"workers": -1, "engine": "ray"}, "workers=-1: Input should be greater than or equal to 1"),
    ({"workers": 2}, "workers=2 is for engine='ray'"),
    ({"limit": 0}, "limit=0 is too small"),
    ({"limit": "1 0"}, "limit='1 0': give one number of questions for all tasks"),
    ({"limit": "1,gsm8k=2"}, "for all tasks, such as 100, or one for each by name"),
    ({"limit": {"ARC-Challenge": 1, "arc_challenge": 2}}, "limit= names arc_challenge twice"),
    ({"ids": "0-999999999"}, "names more than 1,000,000 numbers"),
    ({"ids": 2.5}, "ids=2.5 is not a number or a list of numbers"),
    ({"ids": ""}, "ids='' is empty"),
    ({"device": "gpu"}, "there is no device 'gpu': choose cpu"),
    ({"levle": "grid"}, "there is no setting 'levle': did you mean level?"),
    ({"protocol": "paper:unit_size"}, "'unit_size' is not NAME=VALUE"),
    ({"protocol": "paper:size=3"}, "protocol='size' is not known: did you mean unit_size?"),
    ({"config": {"level": "full"}}, "is not a MeasureConfig"),
    ({"model_args": {"seed": "x"}}, "seed='x' is not a whole number"),
    ({"model": 5}, "model= takes a name"),
    ({"tasks": 5}, "tasks=5 is not a task"),
    ({"tasks": {"prompt": "a", "solution": "b"}}, "is not a task: give names or files"),
    ({"tasks": [{"prompt": "a", "solution": "b"}]}, "Task.from_rows"),
    ({"tasks": []}, "no task given: name one or more, e.g. tasks='arithmetic,gsm8k'"),
    ({"output": "a\0b"}, "holds bytes that are not UTF-8 text"),
]

BAD_FLAGS: list[tuple[str, str, str]] = [
    ("transitions", "4-2", "'4-2' runs backwards: write 2-4"),
    ("transitions", "3>1", "'3>1' runs backwards: write 1>3"),
    ("transitions", "1:30", "'1:30' is not a number or a range"),
    ("limit", "arithmetic=1,arithmetic=2", "give one number of questions for all tasks"),
    ("ids", "0,0", "--ids names row 0 twice"),
    ("level", "ful", "--level ful is not known: did you mean full?"),
    ("protocol", "loopscope:unit_size=0", "unit_size='0': Input should be greater than or equal to 1"),
    ("paths", "true", "--paths stores the FP64 analysis: add --level full"),
]


@pytest.mark.parametrize(("options", "expected"), BAD_IN_PYTHON, ids=lambda given: shown(given)[:40])
def test_bad_setting_in_python(options: dict[str, Any], expected: str, tmp_path: Path) -> None:
    given = {"model": "toy-ouro", "tasks": ["arithmetic"], "output": tmp_path / "run", **ENOUGH, **options}
    with pytest.raises(LoopscopeError) as caught:
        measure(**given)
    message = str(caught.value)
    assert expected in message
    assert "\n" not in message
    assert "--" not in message
    assert len(message) < 400
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "value", "expected"), BAD_FLAGS, ids=lambda given: shown(given)[:40])
def test_bad_flag(name: str, value: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["measure", "--model", "toy-ouro", "--tasks", "arithmetic", "--output", str(tmp_path / "run")]
    words += ["--device", "cpu", *([] if name == "transitions" else ["--transitions", "1"])]
    assert exit_code([*words, f"--{name}", *([] if name == "paths" else [value])]) == 2
    out, message = capsys.readouterr()
    assert expected in message
    assert message.count("\n") == 1
    assert len(message) < 1200
    assert out == ""
    assert not (tmp_path / "run").exists()


def test_what_has_one_meaning_is_accepted(measured: Callable[..., StoredRun], contents: Callable[..., Any]) -> None:
    wanted = contents(measured("ouro", "arithmetic", limit=2, level="quick", transitions=[2], depths=[0, 1, 2]).path)
    same = {"limit": "2", "transitions": 2, "depths": " 0 - 2 ", "device": torch.device("cpu"), "dtype": torch.float32}
    assert contents(measured("ouro", "arithmetic", level="quick", **same).path) == wanted
    same = {"limit": {"arithmetic": np.int64(2)}, "transitions": "2", "depths": np.arange(3)}
    assert contents(measured("ouro", "arithmetic", level="quick", **same).path) == wanted


def test_tasks_may_be_one_text_or_path(tmp_path: Path) -> None:
    assert task_list("mine=data/my.jsonl") == ("mine=data/my.jsonl",)
    assert task_list(tmp_path) == (str(tmp_path),)
    assert task_list(iter(["a", "b"])) == task_list("a , b") == ("a", "b")


def test_rows_and_limits_by_task_are_known_by_its_own_name() -> None:
    assert rows({"ARC-Challenge": 5, "piqa": "0-2"}) == {"arc_challenge": (5,), "piqa": (0, 1, 2)}
    assert limits(" ARC-Challenge = 5 , piqa=2") == {"arc_challenge": 5, "piqa": 2}
