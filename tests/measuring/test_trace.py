"""The table `trace`: every column against its formula from the states and logits of a plain walk, in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from loopscope import load_model
from loopscope.api import measure_with as measure
from loopscope.errors import LoopscopeError
from loopscope.measuring import readouts
from loopscope.store import StoredRun, verify

DEEPEST, LENS = 4, 3
CASES = [(family, task) for family in ("ouro", "huginn") for task in ("arithmetic", "arithmetic-mc")]


@pytest.mark.parametrize(("family", "task"), CASES)
def test_every_column_follows_its_formula(
    family: str,
    task: str,
    checkpoint: Callable[[str], str],
    tmp_path: Path,
    plain: Any,
    same_trace: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(readouts.CHUNK, "cpu", 512 * 5)  # chunks of a few tokens
    folder = checkpoint(family)
    run = measured_in_float64(folder, task, tmp_path / "run")
    same_trace(run, load_model(folder, dtype="float64"), plain.examples_of(folder, task, 3))
    key = run.trace.select("row", "depth", "option", "token").collect().rows()
    assert key == sorted(set(key))
    assert verify(run).ok


def measured_in_float64(folder: str, task: str, output: Path, **more: Any) -> Any:
    given = {"limit": 3, "transitions": [2], "depths": [DEEPEST], "lens": LENS, **more}
    return measure(folder, task, output=output, dtype="float64", readout_dtype="float64", **given)


def test_a_trace_changes_no_other_table(measured: Callable[..., StoredRun], contents: Callable[..., Any]) -> None:
    without, with_it = (measured(tokens=True, **more) for more in ({}, {"trace": True}))
    tables = ("questions/", "depths/", "tokens/", "examples/")
    plain, traced = (contents(run.path) for run in (without, with_it))
    for name in plain:
        if name.startswith(tables):
            assert plain[name] == traced[name], name
    assert "trace" not in {table.name for table in without.manifest.tables()}
    with pytest.raises(LoopscopeError, match="was measured without trace: measure again with trace=True"):
        without.trace  # noqa: B018
    # The tables of one run agree with each other: U is the mean of the tokens' log probabilities.
    mean = with_it.trace.group_by("row", "depth").agg(pl.col("log_prob").mean()).collect()
    joined = with_it.depths.join(mean, on=["row", "depth"])
    np.testing.assert_allclose(joined["log_prob"], joined["utility"], atol=1e-6)
    assert set(joined["depth"]) == {2, 3, 4}
