"""`measure(certify=True)`: what is stored, what it must hold, and what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import loopscope as ls
from loopscope.api import measure_with
from loopscope.measuring import checks
from loopscope.readout.certified import balls
from loopscope.readout.certified.intervals import Interval
from loopscope.store import StoredRun

ENDS = ("utility", "slope", "quadratic", "gain", "quarter_gain", "predicted_gain", "C")
TASKS = ["arithmetic", "arithmetic-mc"]


def measured(output: Path, **changes: Any) -> ls.Run:
    given = {"tasks": TASKS, "transitions": "1-7", "level": "full", "limit": 3, "device": "cpu", "certify": True}
    return measure_with("toy-ouro", output=output, **given | changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ls.Run:
    return measured(tmp_path_factory.mktemp("certified") / "run")


def test_almost_every_outcome_of_the_embedded_affine_model_is_certified(run: ls.Run):
    rows = run.table("certificates").rows
    assert len(rows) == 14
    assert sum(row["certified"] for row in rows) >= 0.99 * sum(row["updates"] for row in rows)
    assert sum(row["signs"] for row in rows) >= 0.99 * sum(row["updates"] for row in rows)


def test_enclosures_are_in_order_and_hold_what_float64_says(run: ls.Run):
    found = StoredRun(run.path).read("certificates")
    stored = StoredRun(run.path).records.join(found, on=["task", "row", "transition"], suffix="_certified")
    for name in ENDS:
        assert (found[name].list.get(0) <= found[name].list.get(1)).all(), name
    for name in ("slope", "quadratic", "gain"):
        # Float64 results may be off by their own rounding, not by more.
        low, high = (stored[f"{name}_certified"].list.get(end) for end in (0, 1))
        assert stored[f"fp64_{name}"].is_between(low - 1e-12, high + 1e-12).all(), name
    solutions = stored.filter(pl.col("fp64_M").is_not_null())
    assert (solutions["C"].list.get(0) <= solutions["fp64_C_upper"] * (1 + 1e-9)).all()
    assert (solutions["L_D"] >= solutions["fp64_sampled_curvature"] * (1 - 1e-9)).all()
    regret = stored["fp64_optimum_gain_low"] - stored["predicted_gain"].list.get(1)
    assert (regret <= stored["regret_high"] + 1e-12).all()
    assert ((stored["safe_scale"] > 0) == (stored["slope_certified"].list.get(0) > 0)).drop_nulls().all()


def test_a_run_without_certificates_says_why(tmp_path: Path):
    curved = measure_with(
        "toy-huginn", "arithmetic", output=tmp_path / "h", transitions=2, limit=1, level="quick", device="cpu"
    )
    assert "this study is about models with an affine readout" in " ".join(curved.table("certificates").notes)


def widened(right: Any) -> Any:
    """The enclosures of an update, so wide that every verdict is open."""

    def wrapper(*given: Any) -> Any:
        found = right(*given)
        wide = {
            field.name: Interval(value.low - 1e3, value.high + 1e3)
            for field in dataclasses.fields(found)
            if isinstance(value := getattr(found, field.name), Interval)
        }
        return dataclasses.replace(found, **wide)

    return wrapper


@pytest.mark.parametrize("task", TASKS)
def test_what_float64_leaves_open_is_decided_in_balls(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    few = {"tasks": [task], "transitions": 3, "level": "quick", "limit": 2}
    narrow = StoredRun(measured(tmp_path / "narrow", **few).path).read("certificates")
    monkeypatch.setattr(checks, "enclose_update", widened(checks.enclose_update))
    decided = StoredRun(measured(tmp_path / "balls", **few).path).read("certificates")
    assert decided["arithmetic"].to_list() == ["balls"] * 2
    assert decided["outcome"].equals(narrow["outcome"])
    for name in ENDS[:-1]:
        assert (decided[name].list.get(0) >= narrow[name].list.get(0)).all(), name
        assert (decided[name].list.get(1) <= narrow[name].list.get(1)).all(), name
    monkeypatch.setattr(balls, "are_installed", lambda: False)
    left_open = StoredRun(measured(tmp_path / "open", **few).path).read("certificates")
    assert left_open["arithmetic"].to_list() == ["open"] * 2
    assert left_open["outcome"].null_count() == 2


def test_verdicts_follow_from_the_ends():
    def ends(**given: tuple[float, float]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {name: tuple(np.array([end]) for end in pair) for name, pair in given.items()}  # type: ignore[misc]

    cases = [
        (((0.1, 0.2), (-1.0, 1.0), (-1.0, 1.0)), (0, None)),
        (((0.0, 0.0), (-1.0, 1.0), (0.0, 0.0)), (1, None)),
        (((-0.2, -0.1), (-1.0, 0.0), (-1.0, 1.0)), (2, None)),
        (((-0.2, -0.1), (0.1, 0.2), (0.1, 0.2)), (3, True)),
        (((-0.2, -0.1), (0.1, 0.2), (-0.1, 0.0)), (3, False)),
        (((-0.2, -0.1), (0.1, 0.2), (-0.1, 0.1)), (3, None)),
        (((-0.2, -0.1), (-0.1, 0.2), (0.1, 0.2)), (None, None)),
        (((-0.2, 0.1), (0.1, 0.2), (0.1, 0.2)), (None, None)),
        (((0.0, 0.1), (0.1, 0.2), (0.1, 0.2)), (None, None)),
    ]
    for (gain, slope, quarter), (outcome, recovered) in cases:
        given = ends(gain=gain, slope=slope, quarter_gain=quarter, prediction=(1.0, 2.0))
        found, is_open = checks.verdicts(given)
        known = {-9: None, 0: False, 1: True}
        assert found["outcome"].tolist() == [-9 if outcome is None else outcome]
        assert [known[code] for code in found["recovered"].tolist()] == [recovered]
        assert found["prediction_sign"].tolist() == [1]
        assert is_open.tolist() == [outcome is None or (outcome == 3 and recovered is None)]
