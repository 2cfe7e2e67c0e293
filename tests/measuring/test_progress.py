"""Progress on stderr, and what `plan` counts; that its times come near is for the machine it runs on to show."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import loopscope as ls
from loopscope.measuring.progress import Progress
from loopscope.store import StoredRun


def test_lines_say_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("plain", "tiny", 10, 4) as shown:
        shown.count(6, 600)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tiny: 10/10 questions (100%)")
    assert "tokens/s" in err
    assert "0:00 left" in err


def test_progress_moves_with_batches_and_not_with_units(
    measured: Callable[..., StoredRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(Progress, "count", lambda self, questions, tokens: told.append((questions, tokens)))
    measured("ouro", "arithmetic", limit=7, unit_size=7, batch_size=2, level="quick")
    assert [questions for questions, _ in told] == [2, 2, 2, 1]
    assert all(tokens > questions for questions, tokens in told)


ASKED = {"transitions": 2, "level": "quick", "limit": 8, "device": "cpu"}


def test_everything_is_counted(checkpoint: Callable[[str], str], tmp_path) -> None:
    tasks = ["arithmetic", "arithmetic-mc"]
    cost = ls.plan(checkpoint("ouro"), tasks, batch_size="1", seconds=0.01, **ASKED)
    run = ls.measure(checkpoint("ouro"), tasks, batch_size="1", output=tmp_path / "run", **ASKED)
    assert cost.questions == 16
    tokenizer, rows = ls.load_tokenizer(checkpoint("ouro")), run.examples.filter(pl.col("kind") == "solution")
    positions = sum(len(tokenizer.encode(f"{row['prompt']}{row['reference']}")) for row in rows.iter_rows(named=True))
    assert cost.tokens > positions
    alone = ls.plan(checkpoint("ouro"), "arithmetic", batch_size="1", seconds=0.01, **ASKED)
    assert alone.tokens == positions, "batches of one have no padding"
    assert cost.seconds > 0
