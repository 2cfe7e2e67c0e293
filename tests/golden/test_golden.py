"""Today's code gives the numbers that the golden runs recorded."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from golden_compare import changes, frame_differences, golden_frames, golden_studies, study_differences
from golden_runs import RUNS, GoldenRun, frames_of, studies_of

import loopscope as ls


@pytest.mark.parametrize("golden", RUNS, ids=lambda run: run.name)
def test_no_number_moved(golden: GoldenRun, run_of: Callable[[str], Path]) -> None:
    run = ls.Run(run_of(golden.name))
    known = changes()
    found = []
    frames, studies = frames_of(run), json.loads(json.dumps(studies_of(run)))
    for kind, old, new in (
        ("tables", golden_frames(golden.name), frames),
        ("studies", golden_studies(golden.name), studies),
    ):
        names = set(old) - set(known[kind]["removed"])
        found += [f"{name} is gone" for name in names - set(new)]
        found += [f"{name} is new" for name in set(new) - names - set(known[kind]["added"])]
    for name, frame in golden_frames(golden.name).items():
        if name in frames:
            listed = known["columns"]
            lists = (listed["removed"].get(name, []), listed["added"].get(name, []))
            found += frame_differences(name, frame, frames[name], *lists)
    for name, columns in golden_studies(golden.name).items():
        if name in studies:
            listed = known["study_columns"]
            lists = (listed["removed"].get(name, []), listed["added"].get(name, []))
            found += study_differences(name, columns, studies[name], *lists)
    assert not found, "\n".join(found)


def test_comparison_finds_what_moved() -> None:
    golden = golden_frames("ouro-full")["questions"]
    moved = {
        "gain": golden.with_columns(-pl.col("gain")),
        "fp64_slope": golden.with_columns(pl.col("fp64_slope") + 2e-9),
        "grid_gain": golden.with_columns(pl.col("grid_gain").list.eval(pl.element() + 1e-3)),
        "outcome": golden.with_columns(pl.col("outcome").reverse()),
        "n_tokens": golden.with_columns(pl.col("n_tokens") + 1),
    }
    for column, frame in moved.items():
        found = list(frame_differences("questions", golden, frame, [], []))
        assert len(found) == 1, found
        assert found[0].startswith(f"questions.{column}: ")
    assert list(frame_differences("questions", golden, golden.reverse(), [], [])) == []
    assert list(frame_differences("questions", golden, golden.head(3), [], [])) == [
        f"questions has 3 rows instead of {len(golden)}"
    ]
    assert list(frame_differences("questions", golden, golden.drop("slope"), [], [])) == ["questions.slope is gone"]
    assert list(frame_differences("questions", golden, golden.drop("slope"), ["slope"], [])) == []
    assert len(list(frame_differences("questions", golden, golden, ["slope"], []))) == 1


def test_comparison_finds_what_moved_in_a_study() -> None:
    golden = golden_studies("ouro-full")["mechanism"]
    assert list(study_differences("mechanism", golden, golden, [], [])) == []
    numbers = [name for name, values in golden.items() if isinstance(values[0], int | float)]
    assert len(numbers) > 5
    for name in numbers:
        moved = copy.deepcopy(golden)
        moved[name][0] += 1
        assert len(list(study_differences("mechanism", golden, moved, [], []))) == 1, name
