"""Progress: a bar, lines or nothing, always on stderr."""

from __future__ import annotations

import re
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


def test_a_line_comes_with_the_first_batch_after_its_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr("loopscope.measuring.progress.time.monotonic", lambda: float(next(clock)))
    with Progress("plain", "tiny", 100, 20) as shown:
        for _ in range(8):
            shown.advance(10, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert 3 <= len(lines) <= 8
    assert all(
        re.fullmatch(r"tiny: \d+/100 questions \(\d+%\), [\d.]+/s, \d+ tokens/s, \d:\d\d:\d\d left", x) for x in lines
    )
    assert lines[-1].startswith("tiny: 100/100 questions (100%)")


def test_progress_moves_with_batches_and_not_with_units(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(Progress, "advance", lambda self, questions, tokens: told.append((questions, tokens)))
    measured("ouro", "arithmetic", limit=7, unit_size=7, batch_size=2, level="quick")
    assert [questions for questions, _ in told] == [2, 2, 2, 1]
    assert all(tokens > questions for questions, tokens in told)
