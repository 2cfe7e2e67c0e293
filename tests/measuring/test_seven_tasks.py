"""The seven benchmarks and the embedded tasks through the whole pass: every column there, every number finite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import romb

from loopscope.store import StoredRun, verify
from loopscope.store.schema import Column
from loopscope.studies.topics.checks import agrees

OPTIONS = ("hellaswag", "arc_challenge", "piqa", "boolq", "commonsense_qa")
SOLUTIONS = ("gsm8k", "math500")
ONLY_OPTIONS = frozenset({"correct_option", "option_scores", "option_logliks", "chosen_option", "options"})
SOMETIMES_NULL = frozenset({"difficulty", "metadata", "scalar_quadratic", "grid_evaluated", "interpolation_error"}) | {
    f"fp64_{name}" for name in ("safe_scale", "safe_gain", "boundary")
}


def always_null(column: Column, kind: str, *, affine: bool) -> bool:
    """Whether this kind of path leaves the column empty."""
    concave = kind == "solution" and affine
    if kind == "solution" and column.name in ONLY_OPTIONS:
        return True
    if kind == "options" and column.name in ("reference", "kl_correction"):
        return True
    if "protocol `paper`" in column.meaning and column.name != "kl_correction":
        return True
    if concave:
        return column.name.startswith(("fp64_third", "fp64_refined"))
    gate = column.name.startswith("exit")
    return "affine" in column.meaning or (gate and not affine)


def require_whole(run: StoredRun, kind: str, *, affine: bool) -> None:
    """Every table has rows, every column that this kind of path fills is full, nothing is NaN."""
    assert run.finished
    assert verify(run).ok
    for table in run.manifest.tables():
        frame = run.read(table.name)
        assert frame.height > 0
        for column in table.columns:
            nulls = frame[column.name].null_count()
            if column.name not in SOMETIMES_NULL and run.manifest.level.includes(column.level):
                expected = frame.height if always_null(column, kind, affine=affine) else 0
                assert nulls == expected, f"{table.name}.{column.name}"
            if column.element.startswith("float"):
                flat = frame[column.name].explode() if column.is_list else frame[column.name]
                assert np.isfinite(flat.drop_nulls().to_numpy()).all()


def require_identities(run: StoredRun) -> None:
    """What must vanish but for FP64 rounding and quadrature: ΔU = A + ∫(1−s)φ'', ΔU = A − C, H + D = H⁺."""
    frame = run.records.sort("task", "row", "transition")
    stored = run.read("paths").sort("task", "row", "transition")
    scale = 1.0 + frame["fp64_slope"].abs() + frame["fp64_gain"].abs()
    alpha, curvature = np.arange(257) / 256, np.array(stored["curvature"].to_list())
    slope, gain = (frame[f"fp64_{name}"].to_numpy() for name in ("slope", "gain"))
    # SciPy's Romberg rule on the same 257 nodes has a higher order than the stored residual's cubics.
    residual = gain - slope - romb((1 - alpha) * curvature, dx=1 / 256, axis=1)
    assert np.abs(residual / scale.to_numpy()).max() < 1e-10
    assert float((frame["fp64_decomposition_residual"].abs() / scale).max()) < 1e-8
    assert frame["fp64_state_gap"].max() < 1e-15
    residual = (frame["gain"] - (frame["slope"] - frame["kl_correction"])).drop_nulls()
    assert (residual.abs() < 1e-5).all()


def require_scalar_checks(run: StoredRun) -> None:
    assert agrees(run.records["quadratic"].to_numpy(), run.records["scalar_quadratic"].to_numpy()).all()


@pytest.mark.parametrize("task", [*SOLUTIONS, *OPTIONS])
def test_affine_model_on_a_benchmark(task: str, measured: Callable[..., StoredRun], data_dir: Path) -> None:
    run = measured("ouro", task, level="full", tokens=True, paths=True, limit=2, data_dir=data_dir)
    require_whole(run, "options" if task in OPTIONS else "solution", affine=True)
    require_identities(run)
    require_scalar_checks(run)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["arithmetic", "arithmetic-mc"])
def test_nonlinear_model_in_full(task: str, measured: Callable[..., StoredRun]) -> None:
    run = measured("huginn", task, level="full", tokens=True, paths=True, limit=1)
    require_whole(run, "options" if task.endswith("mc") else "solution", affine=False)
    require_identities(run)
    require_scalar_checks(run)


def test_depths_alone_need_no_transition(measured: Callable[..., StoredRun]) -> None:
    run = measured("ouro", "arithmetic-mc", transitions=[], depths=[0, 1, 3], limit=3)
    assert run.depths["depth"].to_list() == [0, 1, 3] * 3
    assert run.records.height == 0
    assert verify(run).ok
