"""Level full: bounds that hold, optima that are optima, and the same paths by another evaluation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from loopscope.api import measure_with as measure
from loopscope.store import StoredRun


@pytest.fixture(scope="module")
def run(checkpoint: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], StoredRun]:
    """A full run of one of the embedded tasks, made once."""
    made: dict[str, StoredRun] = {}
    folder: Path = tmp_path_factory.mktemp("fp64")

    def get(task: str) -> StoredRun:
        if task not in made:
            made[task] = measure(
                checkpoint("ouro"),
                [task],
                output=folder / task,
                transitions=[1, 3],
                level="full",
                paths=True,
                limit=6,
                readout_dtype="float64",
                device="cpu",
            )
        return made[task]

    return get


def nodes(run: StoredRun, name: str) -> np.ndarray:
    return np.stack(run.read("paths")[name].to_list())


def column(run: StoredRun, name: str) -> np.ndarray:
    return run.records[f"fp64_{name}"].to_numpy()


@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_nodes_hold_the_grid_of_the_pass(task: str, run: Callable[[str], StoredRun]) -> None:
    grid = np.stack(run(task).records["grid_gain"].to_list())
    # α = 0, 1/4, 1/2, 3/4, 1 are nodes of both.
    np.testing.assert_allclose(nodes(run(task), "gain")[:, ::64], grid[:, ::5], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(column(run(task), "quarter_gain"), nodes(run(task), "gain")[:, 64])


@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_derivatives_at_the_nodes_integrate_to_each_other(task: str, run: Callable[[str], StoredRun]) -> None:
    found = run(task)
    for above, below in (("gain", "slope"), ("slope", "curvature"), ("curvature", "third")):
        value, rate = nodes(found, above), nodes(found, below)
        simpson = (rate[:, :-2:2] + 4 * rate[:, 1:-1:2] + rate[:, 2::2]) / (6 * 128)
        np.testing.assert_allclose(np.diff(value[:, ::2], axis=1), simpson, atol=1e-7)


def test_bounds_hold_at_every_sample(run: Callable[[str], StoredRun]) -> None:
    found = run("arithmetic")
    curvature, third = -nodes(found, "curvature"), np.abs(nodes(found, "third"))
    assert (column(found, "L_D") >= curvature.max(1)).all()
    assert (column(found, "mu") <= curvature.min(1)).all()
    assert (column(found, "M") >= third.max(1)).all()
    assert (column(found, "L_D") < 1.2 * curvature.max(1)).all()


def test_concave_optimum_is_bracketed(run: Callable[[str], StoredRun]) -> None:
    frame = run("arithmetic").records
    gain = nodes(run("arithmetic"), "gain")
    low, high = frame["fp64_optimum_low"].to_numpy(), frame["fp64_optimum_high"].to_numpy()
    inner = (frame["fp64_optimum_kind"] == "interior").to_numpy()
    assert ((high - low)[inner] <= 1e-12).all()
    assert (frame["fp64_optimum_slope"].list.get(0).to_numpy()[inner] > 0).all()
    assert (frame["fp64_optimum_slope"].list.get(1).to_numpy()[inner] <= 0).all()
    assert (frame["fp64_optimum_gain_high"].to_numpy() >= gain.max(1) - 1e-14).all()
    assert (frame["fp64_optimum_gain_low"] <= frame["fp64_optimum_gain_high"]).all()
    assert set(frame["fp64_optimum_kind"]) <= {"left", "interior", "right"}


def test_safe_step_gains_what_it_promises(run: Callable[[str], StoredRun]) -> None:
    frame = run("arithmetic").records
    improving = frame.filter(pl.col("fp64_slope") > 0)
    assert improving.height > 0
    scale, slope, bound = (improving[f"fp64_{name}"].to_numpy() for name in ("safe_scale", "slope", "L_D"))
    np.testing.assert_allclose(scale, np.minimum(1.0, 0.9 * 2 * slope / bound))
    promised = scale * slope - bound * scale**2 / 2
    assert (improving["fp64_safe_gain"].to_numpy() >= promised - 1e-15).all()
    assert (improving["fp64_safe_gain"] > 0).all()
    others = frame.filter(pl.col("fp64_slope") <= 0)
    assert others["fp64_safe_scale"].null_count() == others.height


def test_searched_optimum_beats_every_node(run: Callable[[str], StoredRun]) -> None:
    found = run("arithmetic-mc")
    best = column(found, "optimum_gain_high")
    assert (best >= nodes(found, "gain").max(1)).all()
    assert (best >= column(found, "predicted_gain")).all()
    assert (found.records["fp64_refined_change"].list.get(0) < 1e-9).all()
