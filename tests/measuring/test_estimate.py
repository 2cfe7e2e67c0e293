"""What `plan` counts and says; that its times come near is for the machine it runs on to show."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import loopscope as ls
from loopscope.measuring.estimate import CostEstimate, together

ASKED = {"transitions": 2, "level": "quick", "limit": 8, "unit_size": 4, "device": "cpu"}


def test_everything_is_counted(checkpoint: Callable[[str], str], tmp_path) -> None:
    tasks = ["arithmetic", "arithmetic-mc"]
    cost = ls.plan(checkpoint("ouro"), tasks, batch_size="1", seconds=0.01, **ASKED)
    run = ls.measure(checkpoint("ouro"), tasks, batch_size="1", output=tmp_path / "run", **ASKED)
    assert cost.tasks == {"arithmetic": 8, "arithmetic-mc": 8}
    assert cost.batches == 16
    tokenizer, rows = ls.load_tokenizer(checkpoint("ouro")), run.examples.filter(pl.col("kind") == "solution")
    positions = sum(len(tokenizer.encode(f"{row['prompt']}{row['reference']}")) for row in rows.iter_rows(named=True))
    assert cost.tokens > positions
    alone = ls.plan(checkpoint("ouro"), "arithmetic", batch_size="1", seconds=0.01, **ASKED)
    assert alone.tokens == positions, "batches of one have no padding"
    stored = sum(path.stat().st_size for path in run.path.rglob("*.parquet"))
    assert stored / 4 < cost.disk < stored * 4
    assert cost.seconds > 0
    assert cost.timed <= 2 * cost.tokens


def test_lines_for_people() -> None:
    cost = CostEstimate("m", {"gsm8k": 1319}, 1_000_000, 40, 90.0, 2_000_000_000, 3_000_000, 5_000)
    assert str(cost).splitlines() == [
        "model      m",
        "questions  1,319 (gsm8k 1,319)",
        "tokens     1,000,000 in 40 batches",
        "time       1 min 30 s, from 5,000 tokens timed",
        "memory     2.0 GB at the largest batch that was timed",
        "disk       3.0 MB",
    ]
    both = together([cost, cost])
    assert (both.tokens, both.seconds, both.memory, both.tasks) == (2_000_000, 180.0, cost.memory, {"gsm8k": 2638})


def test_several_models_are_added_up(checkpoint: Callable[[str], str]) -> None:
    one = ls.plan(checkpoint("ouro"), "arithmetic", seconds=0.01, **ASKED)
    two = ls.plan([checkpoint("ouro"), checkpoint("huginn")], "arithmetic", seconds=0.01, **ASKED)
    assert two.tokens == 2 * one.tokens


def test_seconds_must_be_a_time(checkpoint: Callable[[str], str]) -> None:
    with pytest.raises(ls.LoopscopeError, match="is not a time"):
        ls.plan(checkpoint("ouro"), "arithmetic", seconds=-1.0, **ASKED)
