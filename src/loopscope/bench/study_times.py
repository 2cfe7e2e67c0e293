"""How long the paper's tables and figures take, and what resampling costs against SciPy's bootstrap.

`studies` measures both embedded models on both embedded tasks at level full, with token rows and paths (not timed), and
makes every table and every figure from these runs. `bootstrap` resamples the seven estimates of the mechanism table for
as many records as the paper's matrix has; SciPy's percentile bootstrap runs a few resamples of the same statistics,
scaled to 2000. Both draw from the same stream, and the intervals of a small case are compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loopscope.bench.clock import Clock, Measured
from loopscope.bench.row import Reference, Row, Setting, at_most

QUESTIONS, QUICK_QUESTIONS = 40, 2
"""Of each task and model."""
STUDIES_SECONDS, BOOTSTRAP_SECONDS = 20.0, 10.0
"""What the tables and figures, and the bootstrap, may take on two cores."""
RECORDS = {
    "math500": 500,
    "gsm8k": 1319,
    "hellaswag": 10042,
}
"""Questions of the mechanism table's tasks; three models each make 35,583 records."""
MODELS = 3
RESAMPLES, SCIPY_RESAMPLES = 2000, 20
SCIPY = "SciPy's bootstrap"


def rows(setting: Setting) -> list[Row]:
    """All tables and all figures, each measured once: a reader waits for the first of them."""
    from loopscope.studies import open_records
    from loopscope.studies.registry import FIGURES, TABLES

    clock = Clock(torch.device("cpu"))
    questions = QUICK_QUESTIONS if setting.quick else QUESTIONS
    with tempfile.TemporaryDirectory() as scratch:
        runs = _toy_runs(Path(scratch), questions)
        records = open_records(runs)
        reading = Measured.of([clock.once(lambda: (records.updates, records.sweeps))])
        tables = {name: clock.once(partial(_make_table, study, records)) for name, study in TABLES.items()}
        pictures = Path(scratch) / "figures"
        figures = {
            name: clock.once(partial(_draw_figure, study, records, pictures / f"{name}.pdf"))
            for name, study in FIGURES.items()
        }
    size = {"models": 2, "tasks": 2, "questions": questions, "updates": sum(map(len, records.updates))}
    seconds = {"tables": Measured.of([sum(tables.values())]), "figures": Measured.of([sum(figures.values())])}
    together = reading.plus(seconds["tables"]).plus(seconds["figures"])
    text = f"at most {STUDIES_SECONDS:g} s"
    goal = at_most(text, STUDIES_SECONDS, together.value, judged=not setting.quick)
    slowest = {
        "slowest_table_s": max(tables.values()),
        "slowest_figure_s": max(figures.values()),
        "reading_s": reading.value,
    }
    return [
        Row("studies", "Every table and every figure of the paper", size, "s", together, (), (goal,), slowest),
        Row("studies:tables", f"{len(tables)} tables as text", size, "s", seconds["tables"]),
        Row("studies:figures", f"{len(figures)} figures as PDF", size, "s", seconds["figures"]),
    ]


def _make_table(study: Any, records: Any) -> None:
    study.table(records).to_text()


def _draw_figure(study: Any, records: Any, path: Path) -> None:
    study.figure(records).save(path)


def _toy_runs(folder: Path, questions: int) -> list[Path]:
    from loopscope.api import measure

    runs = []
    for model, transitions in (("toy-ouro", "1-8"), ("toy-huginn", "1-8")):
        measure(
            model,
            ["arithmetic", "arithmetic-mc"],
            output=folder / model,
            transitions=transitions,
            depths="1-9",
            level="full",
            tokens=True,
            paths=True,
            limit=questions,
            scalar_checks=0,
            device="cpu",
            dtype="float32",
        )
        runs.append(folder / model)
    return runs


def bootstrap_rows(setting: Setting) -> list[Row]:
    """One row."""
    from loopscope.stats import Bootstrap

    share = 100 if setting.quick else 1
    groups = [_Group(n // share, seed) for seed in range(MODELS) for n in RECORDS.values()]
    ours = Bootstrap(resamples=RESAMPLES // share)
    clock, repeats = Clock(torch.device("cpu")), setting.sizes.slow_repeats
    raced = clock.race({"ours": lambda: [group.estimates(ours) for group in groups]}, repeats)
    slow = clock.race({SCIPY: lambda: [group.by_scipy(SCIPY_RESAMPLES) for group in groups]}, 1, warm_ups=0)
    theirs = slow[SCIPY].times(ours.resamples / SCIPY_RESAMPLES)
    goal = at_most(f"at most {BOOTSTRAP_SECONDS:g} s", BOOTSTRAP_SECONDS, raced["ours"].value, judged=not setting.quick)
    return [
        Row(
            "bootstrap",
            f"{ours.resamples} resamples of seven estimates in each of {len(groups)} conditions",
            {"records": sum(group.count for group in groups), "resamples": ours.resamples},
            "s",
            raced["ours"],
            (Reference(SCIPY, theirs),),
            (goal,),
            {"largest_difference": _Group(300, 1).largest_difference(200)},
        )
    ]


class _Group:
    """Random slopes, coefficients and gains of one condition, and the mechanism table's seven statistics of them."""

    def __init__(self, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.count = count
        slope, quadratic = rng.normal(0.1, 0.3, count), rng.normal(-0.3, 0.3, count)
        predicted = slope + quadratic
        gain = predicted + rng.normal(0.0, 0.1, count)
        harmful = gain < 0
        self.means = {
            "gain": gain,
            "sign of A": (np.sign(slope) == np.sign(gain)).astype(float),
            "sign of A+Q": (np.sign(predicted) == np.sign(gain)).astype(float),
            "error of A": np.abs(slope - gain),
            "error of A+Q": np.abs(predicted - gain),
        }
        self.ratio = ((harmful & (slope > 0)).astype(float), harmful.astype(float))
        self.ranks = (predicted, gain)

    def estimates(self, settings: Any) -> dict[str, Any]:
        """By loopscope."""
        from loopscope.stats import Mean, Ratio, Spearman

        found: dict[str, Any] = settings.estimate(
            {name: Mean(values) for name, values in self.means.items()}
            | {"share": Ratio(*self.ratio), "rank": Spearman(*self.ranks)}
        )
        return found

    def by_scipy(self, resamples: int) -> dict[str, Any]:
        """The intervals by SciPy, one statistic after the other."""
        from scipy.stats import spearmanr  # type: ignore[import-untyped]

        found = {name: _scipy((values,), np.mean, resamples) for name, values in self.means.items()}
        found["share"] = _scipy(self.ratio, lambda a, b: a.sum() / b.sum(), resamples)
        found["rank"] = _scipy(self.ranks, lambda a, b: spearmanr(a, b).statistic, resamples)
        return found

    def largest_difference(self, resamples: int) -> float:
        """Of any end of any interval."""
        from loopscope.stats import Bootstrap

        theirs = self.by_scipy(resamples)
        ours = {name: one.interval for name, one in self.estimates(Bootstrap(resamples=resamples)).items()}
        return max(
            float(max(abs(ours[name].low - one.low), abs(ours[name].high - one.high))) for name, one in theirs.items()
        )


def _scipy(data: tuple[NDArray[Any], ...], statistic: Callable[..., Any], resamples: int) -> Any:
    from scipy.stats import bootstrap

    from loopscope.stats import Bootstrap

    rng = np.random.default_rng(Bootstrap().seed)
    return bootstrap(
        data, statistic, n_resamples=resamples, method="percentile", paired=True, vectorized=False, rng=rng
    ).confidence_interval
