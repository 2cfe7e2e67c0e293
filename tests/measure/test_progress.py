"""Progress: a bar, lines or nothing, always on stderr."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loopscope.measure.progress import Bar, Lines, Silent, progress
from loopscope.store import Run


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


def test_style_follows_the_terminal() -> None:
    assert isinstance(progress("auto", "tiny", 1, 0), Lines)
    assert isinstance(progress("bar", "tiny", 1, 0), Bar)
    assert type(progress("none", "tiny", 1, 0)) is Silent


def test_bar_counts_what_was_there_before(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("bar", "tiny", 10, 4) as shown:
        shown.advance(6, 600)
    assert "10/10" in capsys.readouterr().err


def test_pass_reports_itself(measured: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    measured("ouro", "arithmetic", limit=2, level="quick", progress_style="plain")
    assert "2/2 questions (100%)" in capsys.readouterr().err
