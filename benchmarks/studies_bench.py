"""How long the paper's tables and figures take from stored records, and what the resampling costs against SciPy's.

    python benchmarks/studies_bench.py [--toy-questions 400] [--reference 20]

Two made-up sets of runs are written by the store and read back: one of the size of the embedded models' (four tasks,
transitions 1 to 8, token rows and stored paths, at level full), one of the size of the paper's mechanism matrix (three
models, MATH-500, GSM8K test and HellaSwag validation, 35,583 records). Writing them is not counted. SciPy's own
percentile bootstrap runs a few resamples of the same statistics, scaled to 2000; both use the same stream of draws,
and the intervals of a small case are compared.
"""

import argparse
import importlib.util
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import scipy
from scipy import stats as scipy_stats

import loopscope
from loopscope.stats import Bootstrap, Mean, Ratio, Spearman
from loopscope.studies.records import Records
from loopscope.studies.registry import FIGURES, TABLES

TOY_BUDGET_S = 20.0
MATRIX_BUDGET_S = 10.0
MATRIX_RECORDS = 35_583


def load_synthetic() -> ModuleType:
    source = Path(__file__).resolve().parents[1] / "tests" / "studies" / "synthetic.py"
    spec = importlib.util.spec_from_file_location("studies_synthetic", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def toy_runs(synthetic: ModuleType, folder: Path, questions: int) -> list[Path]:
    transitions = list(range(1, 9))
    paths = []
    for index, (name, family) in enumerate((("toy-ouro", "ouro"), ("toy-huginn", "huginn"))):
        tasks = [
            synthetic.Task(
                task,
                {t: synthetic.realistic(questions, seed=100 * place + t) for t in transitions},
                kind=kind,
                tokens=synthetic.realistic_tokens(questions, transitions, seed=place),
            )
            for place, (task, kind) in enumerate((("arithmetic", "solution"), ("arithmetic-mc", "options")), 2 * index)
        ]
        model = {"name": name, "family": family, "affine_readout": family == "ouro"}
        synthetic.write_run(folder / name, tasks, model=model, tokens=True, paths=True)
        paths.append(folder / name)
    return paths


def matrix_runs(synthetic: ModuleType, folder: Path) -> list[Path]:
    sets = (("math500", "test", "solution", 500), ("gsm8k", "test", "solution", 1319))
    sets += (("hellaswag", "validation", "options", 10042),)
    paths = []
    for index, (name, family, transition) in enumerate(
        (("Ouro-1.4B", "ouro", 4), ("Ouro-2.6B", "ouro", 4), ("huginn-0125", "huginn", 19))
    ):
        tasks = [
            synthetic.Task(task, {transition: synthetic.realistic(n, 10 * index + place)}, kind=kind, split=split)
            for place, (task, split, kind, n) in enumerate(sets)
        ]
        model = {"name": name, "family": family, "toy": False, "affine_readout": family == "ouro"}
        synthetic.write_run(folder / name, tasks, model=model, level="grid")
        paths.append(folder / name)
    return paths


class Cost(NamedTuple):
    """Seconds on the clock and seconds of all cores together; far apart on a machine that others use as well."""

    wall: float
    cpu: float

    def plus(self, other: "Cost") -> "Cost":
        """Both together."""
        return Cost(self.wall + other.wall, self.cpu + other.cpu)


def timed(action: Callable[[], Any]) -> tuple[Cost, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = action()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu), result


def total(costs: Iterable[Cost]) -> Cost:
    return reduce(Cost.plus, costs, Cost(0.0, 0.0))


def line(name: str, cost: Cost, remark: str = "") -> None:
    print(f"  {name:<56} {cost.wall:>7.2f} s wall {cost.cpu:>7.2f} s CPU  {remark}")


def bench_toys(paths: list[Path], output: Path) -> bool:
    from loopscope.studies import open_records

    print(f"\nAll tables and figures, two toy models, four tasks, 8 transitions: budget {TOY_BUDGET_S:g} s")
    reading, records = timed(lambda: open_records(paths))
    loaded, _ = timed(lambda: (records.updates, records.sweeps))
    line("reading the runs", reading.plus(loaded), f"{sum(len(group) for group in records.updates)} records")
    tables = {name: timed(lambda study=study: study.table(records).to_text())[0] for name, study in TABLES.items()}
    line(f"{len(tables)} tables", total(tables.values()), f"slowest {max(tables, key=tables.__getitem__)}")
    figures = {
        name: timed(lambda study=study, name=name: study.figure(records).save(output / f"{name}.pdf"))[0]
        for name, study in FIGURES.items()
    }
    line(f"{len(figures)} figures (PDF)", total(figures.values()), f"slowest {max(figures, key=figures.__getitem__)}")
    together = total([reading, loaded, *tables.values(), *figures.values()])
    line("together", together, verdict(together, TOY_BUDGET_S))
    return together.wall <= TOY_BUDGET_S


def bench_matrix(paths: list[Path], reference: int) -> bool:
    from loopscope.store import StoredRun

    print(f"\nMechanism matrix, 2000 resamples of every estimate: budget {MATRIX_BUDGET_S:g} s")
    records = Records([StoredRun(path) for path in paths])
    loaded, updates = timed(lambda: records.updates)
    count = sum(len(group) for group in updates)
    assert count == MATRIX_RECORDS
    line("reading the runs", loaded, f"{count} records")
    ours, _ = timed(lambda: TABLES["mechanism"].table(records))
    line("nine conditions, seven estimates with intervals each", ours, verdict(ours, MATRIX_BUDGET_S))
    measured = total(timed(lambda group=group: scipy_resamples(group, reference))[0] for group in updates)
    theirs = Cost(measured.wall * 2000 / reference, measured.cpu * 2000 / reference)
    remark = f"{theirs.cpu / ours.cpu:.0f} times the CPU time"
    line(f"SciPy's bootstrap, {reference} resamples scaled to 2000", theirs, remark)
    return ours.wall <= MATRIX_BUDGET_S


def scipy_resamples(group: Any, count: int) -> None:
    predicted, gain = group.slope + group.quadratic, group.gain
    finite_step, harmful = group.finite_step.astype(float), group.harmful.astype(float)
    right = (np.sign(group.slope) == np.sign(gain)).astype(float)
    right_too = (np.sign(predicted) == np.sign(gain)).astype(float)
    columns = [gain, right, right_too, np.abs(group.slope - gain), np.abs(predicted - gain)]
    for column in columns:
        resample((column,), np.mean, count)
    resample((finite_step, harmful), lambda a, b: a.sum() / b.sum(), count)
    resample((predicted, gain), lambda a, b: scipy_stats.spearmanr(a, b).statistic, count)


def resample(data: tuple[np.ndarray, ...], statistic: Callable[..., Any], count: int) -> Any:
    return scipy_stats.bootstrap(
        data,
        statistic,
        n_resamples=count,
        method="percentile",
        paired=True,
        vectorized=False,
        rng=np.random.default_rng(Bootstrap().seed),
    ).confidence_interval


def check_agreement() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=300)
    y = x + rng.normal(size=300)
    settings = Bootstrap(resamples=200)
    harmful = (y < 0).astype(float)
    failed = harmful * (x > 0)
    ours = settings.estimate({"mean": Mean(x), "ratio": Ratio(failed, harmful), "rank": Spearman(x, y)})
    theirs = {
        "mean": resample((x,), np.mean, 200),
        "ratio": resample((failed, harmful), lambda a, b: a.sum() / b.sum(), 200),
        "rank": resample((x, y), lambda a, b: scipy_stats.spearmanr(a, b).statistic, 200),
    }
    worst = max(
        abs(ours[name].interval.low - theirs[name].low) + abs(ours[name].interval.high - theirs[name].high)
        for name in ours
    )
    print(f"\nLargest difference to SciPy's intervals, 300 records, 200 resamples: {worst:.1e}")
    assert worst < 1e-12


def verdict(cost: Cost, budget: float) -> str:
    return f"{'within' if cost.wall <= budget else 'OVER'} the budget of {budget:g} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy-questions", type=int, default=400, help="questions of each toy task")
    parser.add_argument("--reference", type=int, default=20, help="resamples that SciPy's bootstrap runs")
    arguments = parser.parse_args()
    print(
        f"loopscope {loopscope.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"SciPy {scipy.__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )
    synthetic = load_synthetic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        toys = toy_runs(synthetic, folder, arguments.toy_questions)
        matrix = matrix_runs(synthetic, folder / "matrix")
        kept = [bench_toys(toys, folder / "figures"), bench_matrix(matrix, arguments.reference)]
    check_agreement()
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
