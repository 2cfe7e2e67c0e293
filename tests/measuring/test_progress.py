"""Progress: a bar, lines or nothing, always on stderr."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loopscope.measuring.progress import Progress
from loopscope.store import StoredRun


def test_lines_say_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("plain", "tiny", 10, 4) as shown:
        shown.advance(6, 600)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tiny: 10/10 questions (100%)")
    assert "tokens/s" in err
    assert "0:00 left" in err


def test_progress_moves_with_batches_and_not_with_units(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(Progress, "advance", lambda self, questions, tokens: told.append((questions, tokens)))
    measured("ouro", "arithmetic", limit=7, unit_size=7, batch_size=2, level="quick")
    assert [questions for questions, _ in told] == [2, 2, 2, 1]
    assert all(tokens > questions for questions, tokens in told)
