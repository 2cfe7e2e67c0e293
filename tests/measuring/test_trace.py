"""The table `trace`: every column against its formula from the states and logits of a plain walk, in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from loopscope.api import measure_with as measure
from loopscope.errors import LoopscopeError
from loopscope.measuring import sequence_groups, tokens_and_trace
from loopscope.models import Batch, load_model, load_tokenizer
from loopscope.readout import affine_path_from_states
from loopscope.store import StoredRun, verify
from loopscope.tasks.encoding import Example, encode_row
from loopscope.tasks.load import load_task

DEEPEST, LENS = 4, 3
CASES = [(family, task) for family in ("ouro", "huginn") for task in ("arithmetic", "arithmetic-mc")]


@pytest.mark.parametrize(("family", "task"), CASES)
def test_every_column_follows_its_formula(
    family: str,
    task: str,
    checkpoint: Callable[[str], str],
    tmp_path: Path,
    same_trace: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Chunks of a few tokens and windows of a few depths.
    monkeypatch.setitem(sequence_groups._CHUNK, "cpu", 512 * 5)
    monkeypatch.setattr(tokens_and_trace, "_WINDOW", 1)
    folder = checkpoint(family)
    run = measured_in_float64(folder, task, tmp_path / "run")
    same_trace(run, load_model(folder, dtype="float64"), examples_of(folder, task))
    key = run.trace.select("row", "depth", "option", "token").collect().rows()
    assert key == sorted(set(key))
    assert verify(run).ok


def measured_in_float64(folder: str, task: str, output: Path, **more: Any) -> Any:
    given = {"limit": 3, "transitions": [2], "depths": [DEEPEST], "lens": LENS, **more}
    return measure(folder, task, output=output, dtype="float64", readout_dtype="float64", **given)


def examples_of(folder: str, task: str, count: int = 3) -> list[Example]:
    loaded, tokenizer = load_task(task, limit=count), load_tokenizer(folder)
    return [encode_row(tokenizer, row, loaded.encoding) for row in loaded.rows]


@pytest.mark.parametrize("halved", [False, True])
def test_a_readout_of_which_nothing_is_known(
    halved: bool, checkpoint: Callable[[str], str], tmp_path: Path, same_trace: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = checkpoint("huginn")
    if not halved:
        monkeypatch.setattr(tokens_and_trace, "deferred_readout", sequence_groups._WholeStates)
    run = measured_in_float64(folder, "arithmetic", tmp_path / "run")
    same_trace(run, load_model(folder, dtype="float64"), examples_of(folder, "arithmetic"))


def test_options_that_share_a_row_have_the_same_trace(checkpoint: Callable[[str], str], tmp_path: Path) -> None:
    alone, shared = (
        measured_in_float64(checkpoint("ouro"), "arithmetic-mc", tmp_path / name, share_context=name == "shared")
        for name in ("alone", "shared")
    )
    frames = [run.trace.collect() for run in (alone, shared)]
    for name in frames[0].columns:
        if frames[0][name].dtype in (pl.Float32,):
            filled = [frame[name].fill_null(0.0).to_numpy() for frame in frames]
            np.testing.assert_allclose(*filled, rtol=1e-6, atol=1e-6, err_msg=name)
        elif name != "lens_probs":
            assert frames[0][name].equals(frames[1][name]), name


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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lens": 101}, "lens=101 is too large: give a number from 0 to 100"),
        ({"lens": 2.5}, "not a whole number"),
        ({"trace": "maybe"}, "trace"),
        ({"trace": True, "transitions": [], "depths": [0]}, "trace=True follows the loops: name a depth from 1 on"),
    ],
)
def test_mistakes_are_one_line(given: dict[str, Any], said: str, measured: Callable[..., StoredRun]) -> None:
    with pytest.raises(LoopscopeError) as refused:
        measured(**given)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_lens_is_another_run(measured: Callable[..., StoredRun], tmp_path: Path) -> None:
    measured(output=tmp_path / "one", lens=2, limit=1)
    with pytest.raises(LoopscopeError, match="lens"):
        measured(output=tmp_path / "one", lens=3, limit=1)
    with pytest.raises(LoopscopeError, match="trace"):
        measured(output=tmp_path / "one", limit=1)


def test_gains_are_those_of_the_path_and_null_elsewhere(checkpoint: Callable[[str], str], tmp_path: Path) -> None:
    folder = checkpoint("ouro")
    run = measure(folder, "arithmetic", output=tmp_path / "run", limit=2, transitions=[2], depths=[4], trace=True)
    found = run.trace.collect()
    assert found["lens_ids"].null_count() == found["rank"].null_count() == found.height
    model: Any = load_model(folder, dtype="float64")
    loaded = load_task("arithmetic", limit=2)
    sequence = encode_row(load_tokenizer(folder), loaded.rows[1], loaded.encoding).sequences[0]
    states = model.states(Batch.from_rows([sequence.token_ids]), [2, 3])
    places = torch.tensor(sequence.positions)
    h, h_plus = states[2][0, places], states[3][0, places]
    path = affine_path_from_states(h, h_plus, *model.head, torch.tensor(sequence.targets)).per_token()
    expected = path.at_scales([0.25, 0.5, 0.75], 0)[0].numpy()
    own = found.filter(pl.col("row") == 1, pl.col("depth") == 3)
    np.testing.assert_allclose(np.array(own["gains"].to_list()), expected, atol=2e-5)
    others = found.filter(pl.col("depth") != 3)
    assert others["gains"].null_count() == others.height
    # A and Q of the token follow from the logits of the two depths.
    _, slope, curvature = path.at_scales([0.0], 2)[..., 0].numpy()
    np.testing.assert_allclose((own["v_reference"] - own["mean_v"]).to_numpy(), slope, atol=2e-5)
    np.testing.assert_allclose(-own["var_v"].to_numpy(), curvature, atol=2e-5, rtol=2e-5)
