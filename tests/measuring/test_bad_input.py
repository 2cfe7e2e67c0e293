"""Whatever a user gets wrong is one clear line, before anything is written and without losing what is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopscope.api import measure_with as measure
from loopscope.errors import LoopscopeError

GOOD: dict[str, Any] = {"transitions": [1], "limit": 1, "device": "cpu"}


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(LoopscopeError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    return message


def long_task(tmp_path: Path) -> str:
    path = tmp_path / "long.jsonl"
    rows = [{"prompt": "word " * count, "solution": " end.", "id": f"q{count}"} for count in (3, 2500, 5, 2600)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_too_long_sequences_are_counted_skipped_or_cut(checkpoint: Callable[[str], str], tmp_path: Path) -> None:
    task = long_task(tmp_path)
    options: dict[str, Any] = {"transitions": [1], "level": "quick", "device": "cpu"}
    said = refused(lambda: measure(checkpoint("ouro"), [task], output=tmp_path / "run", transitions=[1]))
    assert "2 of 4 questions are longer than 2048 tokens: q2500" in said
    assert "long= chooses the policy" in said
    skipped = measure(checkpoint("ouro"), [task], output=tmp_path / "skip", long="skip", **options)
    assert skipped.manifest.tasks[0].skipped == ("q2500", "q2600")
    assert skipped.examples["example_id"].to_list() == ["q3", "q5"]
    assert skipped.examples["row"].to_list() == [0, 1]
    cut = measure(checkpoint("ouro"), [task], output=tmp_path / "cut", long="truncate-left", ids=[0, 1], **options)
    assert len(cut.examples) == 2


def test_overflowing_model_is_named_with_question_and_depth(
    checkpoint: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopscope.models.families.ouro import Ouro

    real = Ouro.step
    monkeypatch.setattr(Ouro, "step", lambda self, state, context: real(self, state, context) * float("inf"))
    said = refused(lambda: measure(checkpoint("ouro"), ["arithmetic"], output=tmp_path / "run", **GOOD))
    assert "no finite state for question" in said
    assert "depth 1" in said
