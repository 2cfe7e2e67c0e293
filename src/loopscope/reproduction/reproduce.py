"""The runs that the paper's tables and figures need, from `paper_runs.toml`; what they take, and what is made of them.

They are measured one after the other into one folder; then tables, figures, comparison and page are written. A run that
is finished is not measured again, one that was interrupted is resumed.
"""

from __future__ import annotations

import functools
import operator
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from loopscope import api
from loopscope.errors import LoopscopeError, choice, setting
from loopscope.measuring.config import PROTOCOLS, MeasureConfig
from loopscope.measuring.progress import CostEstimate, duration, estimate
from loopscope.report import write_report
from loopscope.run import Run
from loopscope.stats import Bootstrap
from loopscope.store.writer import clear_write_errors, write_atomically
from loopscope.studies import FIGURES, TABLES, Study, find
from loopscope.studies.comparison import Comparison, compare, figure_records, paper_tables
from loopscope.studies.conditions import declared, downloaded_commit, place_of
from loopscope.studies.declare import TableResult
from loopscope.studies.records import Records
from loopscope.studies.verdicts import UNVERIFIED

FORMATS = {"text": "txt", "latex": "tex", "csv": "csv"}  # how tables are written, and the ends of the files' names
FIELDS = ("name", "measurement", "model", "tasks", "studies")


@dataclass(frozen=True)
class PaperRun:
    """One run of the plan.

    Attributes:
        name: its folder.
        measurement: the paper's own word for it.
        model: specification of the published checkpoint.
        tasks: evaluation sets.
        settings: what `measure` is asked for, besides model and tasks.
        studies: the tables and figures that it is for.
    """

    name: str
    measurement: str
    model: str
    tasks: tuple[str, ...]
    settings: Mapping[str, Any]
    studies: tuple[str, ...]

    def describe(self) -> str:
        """What is measured, in a line."""
        words = [f"{name.replace('_', ' ')} {value}" for name, value in self.settings.items() if value is not True]
        words += [name for name, value in self.settings.items() if value is True]
        return f"{self.model} on {', '.join(self.tasks)}: {', '.join(words)}"


def paper_runs(protocol: str = "paper") -> tuple[PaperRun, ...]:
    """All runs, under a protocol of `measure`; the batches that a run names are the paper's."""
    choice("protocol", protocol, list(PROTOCOLS))
    source = tomllib.loads(files("loopscope.reproduction").joinpath("paper_runs.toml").read_text(encoding="utf-8"))
    groups, runs = source["studies"], []
    for entry in source["run"]:
        name, measurement, model, tasks, studies = (entry.pop(field) for field in FIELDS)
        if protocol != "paper":
            entry.pop("batch_size", None)
        named = tuple(groups[studies] if isinstance(studies, str) else studies)
        runs.append(PaperRun(name, measurement, model, tuple(tasks), {"protocol": protocol, **entry}, named))
    return tuple(runs)


def chosen_runs(
    runs: Sequence[PaperRun],
    only: Sequence[str] = (),
    models: Sequence[str] = (),
    tasks: Sequence[str] = (),
    *,
    updates_only: bool = False,
) -> tuple[PaperRun, ...]:
    """The runs that some studies, models and tasks need; each with the asked tasks and studies alone.

    `updates_only` leaves out the sweeps of depth: no state beyond the last update is computed.
    """
    every: dict[str, Study] = {**TABLES, **FIGURES}
    studies = {find(name, every).name for name in only}
    known_models = tuple(dict.fromkeys(run.model for run in runs))
    known_tasks = tuple(dict.fromkeys(task.partition(":")[0] for run in runs for task in run.tasks))
    for what, given, known in (("models", models, known_models), ("tasks", tasks, known_tasks)):
        if strange := next((name for name in given if name.partition(":")[0] not in known), None):
            raise LoopscopeError(f"{setting(what, strange)}: the paper has {', '.join(known)}")
    found = []
    for run in runs:
        kept = tuple(task for task in run.tasks if not tasks or {task, task.partition(":")[0]} & set(tasks))
        if updates_only:
            run = replace(run, settings={n: v for n, v in run.settings.items() if n != "depths"})
        if updates_only and "transitions" not in run.settings:
            continue
        asked = tuple(name for name in run.studies if not studies or name in studies)
        if kept and asked and (not models or run.model in models):
            found.append(replace(run, tasks=kept, studies=asked))
    if not found:
        raise LoopscopeError("no run of the paper is left: ask for fewer restrictions at a time")
    return tuple(found)


@dataclass(frozen=True)
class Reproduction:
    """What is to be measured, and how.

    Attributes:
        runs: which ones.
        folder: where to.
        options: settings of `measure` for every run: device, data_dir, limit, random_weights, engine, …
        checkpoints: other specifications for models of the paper, by the paper's: a folder with the weights, say; with
            `@sha256:…` after it where the hashes of the published weights are known.
        notify: called with one line for whatever a user should know.
        bootstrap: resamples, seed and level; the paper's by default.
    """

    runs: Sequence[PaperRun]
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    notify: Callable[[str], None] = print
    bootstrap: Bootstrap | None = None

    def __post_init__(self) -> None:
        models = {run.model for run in paper_runs()}
        if strange := next((name for name in self.checkpoints if name not in models), None):
            raise LoopscopeError(f"{setting('checkpoints', strange)}: the paper has {', '.join(sorted(models))}")
        for given in self.checkpoints.values():
            declared(given)

    def config(self, run: PaperRun) -> MeasureConfig:
        """What `measure` is asked for."""
        given = {"model": declared(self.checkpoints.get(run.model, run.model))[0], "tasks": run.tasks}
        return MeasureConfig(**given, **{**run.settings, **self.options, "output": self.directory(run)})

    def directory(self, run: PaperRun) -> Path:
        """The folder of a run."""
        return self.folder / "runs" / run.name

    def estimates(self) -> Iterator[tuple[PaperRun, CostEstimate]]:
        """What each run will take on this machine, in this process, whichever engine will run."""
        for run in self.runs:
            yield run, estimate(self.config(run))

    def measure(self) -> list[Run]:
        """All runs, in order."""
        configs = [self.config(run) for run in self.runs]  # a wrong setting is one line before any run begins
        found = []
        for number, (run, config) in enumerate(zip(self.runs, configs, strict=True), 1):
            self.notify(f"run {number} of {len(self.runs)}: {run.name}, {run.describe()}")
            began = time.perf_counter()
            found.append(api.measure_config(config, notify=self.notify))
            self.notify(f"{run.name} took {duration(time.perf_counter() - began)}")
        return found

    def verify(self, runs: Sequence[Run]) -> None:
        """Compute every run a second time and compare bit for bit; the comparison reads what each run keeps of it."""
        for number, run in enumerate(runs, 1):
            self.notify(f"second computation {number} of {len(runs)}: {run.path.name}")
            found = run.verify(bitwise=True)
            for line in (*found.findings, *(found.replayed.comparisons if found.replayed else ())):
                self.notify(str(line))

    def weights(self) -> Iterator[str]:
        """A line on each model whose weights come from elsewhere than the hub."""
        for name, given in self.checkpoints.items():
            folder, hashes = declared(given)
            said = f"{UNVERIFIED}: cells are judged with that caveat"
            if commit := downloaded_commit(name, Path(folder)):
                said = f"downloaded at commit {commit}, as published"
            elif hashes:
                said = f"judged as published if the SHA-256 of its {len(hashes)} weight files are those given"
            yield f"{name} from {folder}: {said}"

    def write(self, runs: Sequence[Run]) -> Iterator[Path]:
        """Tables and figures, each of the runs that are for it, the comparison with the paper and the page."""
        tables = self.tables(runs)
        comparison = self.compare(runs, tables)
        for folder, results in (("tables", tables), ("paper", paper_tables(comparison))):
            for name, result in results.items():
                for format, ending in FORMATS.items():
                    text = getattr(result, f"to_{format}")()
                    yield self._write(f"{folder}/{name.removeprefix('tab:')}.{ending}", text)
        yield from self._figures(runs)
        yield self._write("compare.txt", comparison.to_text())
        yield self._write("compare.json", comparison.table().to_json())
        self.notify(comparison.summary())
        with_updates = [run.path for run in runs if run.manifest.transitions]
        if with_updates:  # the page shows updates
            yield Path(write_report(with_updates, self.folder / "report.html"))

    def tables(self, runs: Sequence[Run]) -> dict[str, TableResult]:
        """Every table of the runs that are for it."""
        known = {name: self._records(runs, name) for name in TABLES}
        return {name: TABLES[name].table(found, self.bootstrap) for name, found in known.items() if found.runs}

    def compare(self, runs: Sequence[Run], tables: Mapping[str, TableResult]) -> Comparison:
        """The published numbers next to those of finished tables."""
        rehearsal = "random_weights" in self.options.get("model_args", {})
        return compare(self._records(runs), self.bootstrap, computed=tables, stand_ins=rehearsal)

    def _records(self, runs: Sequence[Run], study: str = "") -> Records:
        """The records of all runs, or of those that are for a study."""
        planned = {run.name: run for run in self.runs}
        kept = [run for run in runs if not study or study in planned[run.path.name].studies]
        # Weights from a folder are judged as those of the paper's model: with a caveat unless hashes or notes show it.
        models = {run: planned[run.path.name].model for run in kept}
        hashes = {model: given.partition("@sha256:")[1:] for model, given in self.checkpoints.items()}
        return Records(
            kept, models={place_of(run): "".join((name, *hashes.get(name, ()))) for run, name in models.items()}
        )

    def _figures(self, runs: Sequence[Run]) -> Iterator[Path]:
        for name, study in FIGURES.items():
            found = self._records(runs, name)
            if not found.runs:
                continue
            try:
                drawn = study.figure(figure_records(found, name), self.bootstrap)
            except LoopscopeError as error:
                if "matplotlib" not in str(error):
                    raise
                self.notify(str(error))
                return
            if drawn.shown:
                yield drawn.save(self.folder / "figures" / f"{name}.pdf")
            else:
                self.notify(f"figure {name}: {drawn.caption}")

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        with clear_write_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (text.rstrip("\n") + "\n").encode())
        return path


def plan_of_run(run: PaperRun, cost: CostEstimate) -> str:
    """What a run takes and what it is for, in some lines."""
    return f"{run.name}  ({run.describe()})\n  {cost}\n  for {', '.join(run.studies)}"


def plan_of_all(costs: Sequence[tuple[PaperRun, CostEstimate]], *, verify: bool = False) -> str:
    """All runs together in a line, and the longest one; `verify` computes all of them a second time."""
    slowest, most = max(costs, key=lambda entry: entry[1].seconds)
    whole = functools.reduce(operator.add, (cost for _, cost in costs))
    again = f"; --verify takes about as long again, {duration(2 * whole.seconds)} in all" if verify else ""
    return f"all runs ({len(costs)}): {whole}; the longest, {slowest.name}, {duration(most.seconds)}{again}"
