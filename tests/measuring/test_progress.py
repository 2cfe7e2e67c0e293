"""Progress: a bar, lines or nothing, always on stderr."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from loopscope.measuring.progress import Bar, Lines, Progress, progress
from loopscope.store import StoredRun


def test_lines_say_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("plain", "tiny", 10, 4) as shown:
        shown.advance(6, 600)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tiny: 10/10 questions (100%)")
    assert "tokens/s" in err
    assert "0:00 left" in err


def test_lines_keep_quiet_in_between(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("plain", "tiny", 10, 0) as shown:
        shown.advance(1, 10)
    assert capsys.readouterr().err == ""


def test_lines_come_on_time_however_long_a_batch_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loopscope.measuring.progress.SECONDS_BETWEEN_LINES", 0.2)
    with progress("plain", "tiny", 100, 20) as shown:
        shown.advance(10, 1000)
        time.sleep(0.7)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 4
    for line in lines:
        found = re.fullmatch(r"tiny: 30/100 questions \(30%\), ([\d.]+)/s, (\d+) tokens/s, 0:(\d\d):(\d\d) left", line)
        assert found is not None, line
        rate, left = float(found[1]), 60 * int(found[3]) + int(found[4])
        # 10 of 80 questions took as long as a seventh of the rest will take.
        assert left == pytest.approx(70 / rate, abs=1.0 + 70 * 0.05 / rate**2)


def test_lines_say_nothing_new_when_all_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loopscope.measuring.progress.SECONDS_BETWEEN_LINES", 0.05)
    with progress("plain", "tiny", 10, 10):
        time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_progress_moves_with_batches_and_not_with_units(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(Progress, "advance", lambda self, questions, tokens: told.append((questions, tokens)))
    run = measured("ouro", "arithmetic", limit=7, unit_size=7, batch_size=2, level="quick", progress_style="none")
    positions = run.examples["n_positions"].to_list()
    assert told == [(2, sum(positions[:2])), (2, sum(positions[2:4])), (2, sum(positions[4:6])), (1, positions[6])]


def test_style_follows_the_terminal() -> None:
    assert isinstance(progress("auto", "tiny", 1, 0), Lines)
    assert isinstance(progress("bar", "tiny", 1, 0), Bar)
    assert type(progress("none", "tiny", 1, 0)) is Progress


def test_bar_counts_what_was_there_before(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("bar", "tiny", 10, 4) as shown:
        shown.advance(6, 600)
    assert "10/10" in capsys.readouterr().err


def test_pass_reports_itself(measured: Callable[..., StoredRun], capsys: pytest.CaptureFixture[str]) -> None:
    measured("ouro", "arithmetic", limit=2, level="quick", progress_style="plain")
    assert "2/2 questions (100%)" in capsys.readouterr().err
