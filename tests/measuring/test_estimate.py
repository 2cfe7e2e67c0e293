"""What `plan` counts and says; that its times come near is for the machine it runs on to show."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import loopscope as ls

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


def test_seconds_must_be_a_time(checkpoint: Callable[[str], str]) -> None:
    with pytest.raises(ls.LoopscopeError, match="is not a time"):
        ls.plan(checkpoint("ouro"), "arithmetic", seconds=-1.0, **ASKED)
