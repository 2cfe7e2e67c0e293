"""Draws of H₀: toy-huginn from three seeds beside plain NumPy, what is no draw of the same, and votes by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

import loopscope as ls
from loopscope.errors import LoopscopeError
from loopscope.measuring.replay import replay
from loopscope.store import verify
from loopscope.studies.records import Records
from loopscope.studies.registry import TABLES

study = TABLES["initial-draws"]
SEEDS = (0, 1_000_000, 2_000_000)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Six questions of toy-huginn from three draws."""
    place = tmp_path_factory.mktemp("draws")
    asked = {"transitions": 1, "limit": 6, "level": "quick", "device": "cpu", "progress_style": "none"}
    return [
        ls.measure("toy-huginn", "arithmetic", output=place / f"seed-{seed}", initial_seed=seed, **asked)
        for seed in SEEDS
    ]


def test_toy_huginn_beside_numpy(drawn):
    assert [run.manifest.seeds["initial_state"] for run in drawn] == list(SEEDS)
    result = study.table(Records(drawn))
    frames = [run.read("questions").sort("row") for run in drawn]
    gain, slope, q = (np.stack([frame[name].to_numpy() for frame in frames]) for name in ("gain", "slope", "quadratic"))
    assert (gain.std(axis=0) > 0).all(), "another draw is another state"
    harmful = gain < 0
    failed = harmful & (slope > 0)
    expected = {
        "gain": gain.mean(axis=1),
        "harmful": harmful.mean(axis=1),
        "finite_step": failed.sum(axis=1) / np.maximum(harmful.sum(axis=1), 1),
        "sign_slope": (np.sign(slope) == np.sign(gain)).mean(axis=1),
        "sign_quadratic": (np.sign(slope + q) == np.sign(gain)).mean(axis=1),
    }
    defined = harmful.any(axis=1)
    expected["finite_step"] = expected["finite_step"][defined]
    assert [row.key for row in result.rows] == list(expected)
    for row in result.rows:
        values = expected[row.key]
        assert row.draws == len(values)
        if len(values):
            assert row.mean == pytest.approx(values.mean())
            assert (row.lowest, row.highest) == (pytest.approx(values.min()), pytest.approx(values.max()))
        if len(values) > 1:
            assert row.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-15)
    kinds = np.where(gain > 0, 0, np.where(gain == 0, 1, np.where(slope > 0, 3, 2)))
    majority = [np.bincount(column).max() for column in kinds.T]
    assert result.rows[0].unanimous == sum(size == 3 for size in majority)
    assert result.rows[0].questions == 6
    listed = dict(part.split(": ") for part in result.rows[0].agreement.split(", "))
    assert {int(size): int(count) for size, count in listed.items()} == {
        size: majority.count(size) for size in set(majority)
    }
    assert not any("apart" in note for note in result.notes)
    assert result.rows[0].shown_mean == pytest.approx(1e3 * gain.mean())


def test_a_draw_replays_from_its_own_seed(drawn):
    assert verify(drawn[1], replay).findings == ()


def test_a_model_that_draws_nothing_refuses_a_seed(tmp_path):
    with pytest.raises(LoopscopeError, match="toy-ouro draws no initial state: leave out initial_seed=3"):
        ls.measure("toy-ouro", "arithmetic", output=tmp_path / "run", depths=1, limit=1, initial_seed=3)
    with pytest.raises(LoopscopeError, match="initial_seed=-1"):
        ls.measure("toy-huginn", "arithmetic", output=tmp_path / "run", depths=1, limit=1, initial_seed=-1)


def test_other_settings_are_no_draws_of_the_same(runs):
    one = runs("one", 7)
    for name, changes in {
        "weights": {"model": {"weights": {"model.safetensors": "0" * 64}}},
        "rule": {"settings": {"initial_state": "paper"}},
    }.items():
        result = study.table(Records([one, runs(name, 900, **changes)]))
        assert result.rows == ()
        assert "measure with initial_seed=0" in result.notes[-1]
    again = study.table(Records([one, runs("again", 7), runs("other", 900)]))
    assert {row.draws for row in again.rows} == {2}
    assert "again is left out: one is the same draw" in again.notes


@pytest.fixture
def runs(synthetic, tmp_path):
    def make(name, seed, paths=((0.5, -0.25, 0.5), (-1.0, 0.5, -0.25)), **changes):
        task = synthetic.Task("sums", {4: synthetic.Paths.of(*paths)})
        settings = changes.pop("settings", {})
        return synthetic.write_run(tmp_path / name, [task], seeds={"initial_state": seed}, settings=settings, **changes)

    return make


def test_votes_by_hand(runs):
    #             question 0               1             2
    # draw 7      finite-step failure      progressing   progressing
    # draw 100    progressing              progressing   progressing
    # draw 9000   finite-step failure      directional   progressing
    slopes = [(0.5, -0.25, 0.5), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5)]
    curves = [(-1.0, 0.5, -0.25), (-0.25, 0.5, -0.25), (-1.0, 0.25, -0.25)]
    made = [runs(f"run-{seed}", seed, (a, q)) for seed, a, q in zip((7, 100, 9000), slopes, curves, strict=True)]
    result = study.table(Records(made))
    rows = {row.key: row for row in result.rows}
    assert (rows["gain"].unanimous, rows["gain"].questions, rows["gain"].agreement) == (1, 3, "3: 1, 2: 2")
    assert rows["harmful"].mean == pytest.approx((1 / 3 + 0 + 2 / 3) / 3)
    # Draw 100 has no harmful update, so no share.
    assert (rows["finite_step"].draws, rows["finite_step"].mean) == (2, pytest.approx(0.75))
    assert json.loads(result.to_json())["rows"][0]["draws"] == 3


def test_seeds_that_share_draws_are_said(runs):
    result = study.table(Records([runs("a", 7), runs("b", 8)]))
    assert any("seeds that are 1 apart give one question the H₀ of another" in note for note in result.notes)
