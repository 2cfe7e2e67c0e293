"""Measure the paper's runs one after the other into one folder, then write tables, figures, comparison and page.

A run that is finished is not measured again, one that was interrupted is resumed. `times.json` keeps what each run was
estimated to take and what it took.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loopscope import api
from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.cost_estimate import CostEstimate, duration, size
from loopscope.measuring.loaded_once import LoadedOnce
from loopscope.report import write_report
from loopscope.reproduction.paper_runs import PaperRun, paper_runs
from loopscope.run import Run
from loopscope.store.atomic import clear_write_errors, write_atomically
from loopscope.studies.comparison import compare
from loopscope.studies.records import Records
from loopscope.studies.registry import EXTRA, FIGURES, TABLES, open_records

FORMATS = {"text": "txt", "latex": "tex", "csv": "csv"}
"""How tables are written, and the ends of the files' names."""


@dataclass(frozen=True)
class Reproduction:
    """What is to be measured, and how.

    Attributes:
        runs: which ones.
        folder: where to.
        options: settings of `measure` for every run: device, data_dir, limit, random_weights, engine, …
        checkpoints: other specifications for models of the paper, by the paper's: a folder with the weights, say.
        notify: called with one line for whatever a user should know.
    """

    runs: Sequence[PaperRun]
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    notify: Callable[[str], None] = print

    def __post_init__(self) -> None:
        models = {run.model for run in paper_runs()}
        if strange := next((name for name in self.checkpoints if name not in models), None):
            raise LoopscopeError(f"{setting('checkpoints', strange)}: the paper has {', '.join(sorted(models))}")

    def call(self, run: PaperRun) -> tuple[tuple[str, list[str]], dict[str, Any]]:
        """The arguments of `measure` for a run, without its folder."""
        return (self.checkpoints.get(run.model, run.model), list(run.tasks)), {**run.settings, **self.options}

    def directory(self, run: PaperRun) -> Path:
        """The folder of a run."""
        return self.folder / "runs" / run.name

    def estimates(self, seconds: float) -> Iterator[tuple[PaperRun, CostEstimate]]:
        """What each run will take on this machine, model by model: each is loaded once, and so are questions."""
        once, models = LoadedOnce(), list(dict.fromkeys(run.model for run in self.runs))
        for run in sorted(self.runs, key=lambda run: models.index(run.model)):
            arguments, options = self.call(run)
            yield run, api.plan(*arguments, seconds=seconds, once=once, **_of_a_plan(options))

    def measure(self) -> list[Run]:
        """All runs, in order."""
        found = []
        for number, run in enumerate(self.runs, 1):
            self.notify(f"run {number} of {len(self.runs)}: {run.name}, {run.describe()}")
            arguments, options = self.call(run)
            began, resumed = time.perf_counter(), self.directory(run).is_dir()
            found.append(api.measure(*arguments, output=self.directory(run), **options, notify=self.notify))
            self._note(run, found[-1], time.perf_counter() - began, resumed=resumed)
            self.notify(f"{run.name} took {_beside_estimate([self._read('times.json')[run.name]])}")
        if len(self.runs) > 1:
            times = self._read("times.json")
            self.notify(f"all runs took {_beside_estimate([times[run.name] for run in self.runs])}")
        return found

    def note_estimate(self, run: PaperRun, cost: CostEstimate) -> None:
        """Keep an estimate beside the time that the run will have taken, and all of it; the last one counts."""
        known = self._read("times.json")
        known.setdefault(run.name, {}).update(estimated_seconds=round(cost.whole, 3), questions=cost.questions)
        self._keep("times.json", known)
        plain = {name: None if value != value else value for name, value in asdict(cost).items()}  # JSON has no NaN
        self._keep("plan.json", self._read("plan.json") | {run.name: plain})

    def _note(self, run: PaperRun, measured: Run, seconds: float, *, resumed: bool) -> None:
        known = self._read("times.json")
        noted = known.setdefault(run.name, {})
        if noted.get("questions") != sum(unit.size for unit in measured.manifest.units()):  # another limit was planned
            noted.pop("estimated_seconds", None)
        if "seconds" not in noted:  # a finished run that is opened again took what it took the first time
            noted |= {"seconds": round(seconds, 3)} | ({"resumed": True} if resumed else {})
        self._keep("times.json", known)

    def _keep(self, name: str, known: dict[str, dict[str, Any]]) -> None:
        _write(self.folder / name, json.dumps(known, indent=1))

    def _read(self, name: str) -> dict[str, dict[str, Any]]:
        path = self.folder / name
        found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return found

    def write(self, runs: Sequence[Run]) -> list[Path]:
        """Tables and figures, each of the runs that are for it, the comparison with the paper and the page."""
        groups: dict[str, tuple[Run, ...]] = {
            name: tuple(run for run, planned in zip(runs, self.runs, strict=True) if name in planned.studies)
            for name in (*TABLES, *FIGURES)
        }
        records = {group: open_records(group) for group in {tuple(runs), *groups.values()} if group}
        written: list[Path] = []
        computed = {}
        for name in (name for name in TABLES if groups[name]):
            computed[name] = TABLES[name].table(records[groups[name]])
            for format, ending in FORMATS.items():
                written.append(self.folder / "tables" / f"{name}.{ending}")
                _write(written[-1], getattr(computed[name], f"to_{format}")())
        written += self._figures({name: records[groups[name]] for name in FIGURES if groups[name]})
        comparison = compare(records[tuple(runs)], computed=computed)
        for ending, text in (("txt", comparison.to_text()), ("json", comparison.table().to_json())):
            written.append(self.folder / f"compare.{ending}")
            _write(written[-1], text)
        self.notify(comparison.summary())
        with_updates = [run.path for run in runs if run.manifest.transitions]
        if with_updates:  # the page shows updates
            written.append(Path(write_report(with_updates, self.folder / "report.html")))
        return written

    def _figures(self, records: Mapping[str, Records]) -> list[Path]:
        written = []
        for name, of_runs in records.items():
            try:
                drawn = FIGURES[name].figure(of_runs)
            except LoopscopeError as error:
                if not any(library in str(error) for library in EXTRA):
                    raise
                self.notify(str(error))
                break
            if drawn.shown:
                written.append(drawn.save(self.folder / "figures" / f"{name}.pdf"))
            else:
                self.notify(f"figure {name}: {drawn.caption}")
        return written


def _beside_estimate(times: Sequence[Mapping[str, float]]) -> str:
    """What runs took, and what they were estimated to take where that is known of each.

    What a run took before it was interrupted is not known.

    >>> _beside_estimate([{"seconds": 50.0, "estimated_seconds": 55.0}]), _beside_estimate([{"seconds": 50.0}])
    ('50 s, estimated 55 s (+10%)', '50 s')
    >>> _beside_estimate([{"seconds": 20.0, "estimated_seconds": 55.0, "resumed": True}])
    '20 s since it was resumed'
    """
    took = sum(each["seconds"] for each in times)
    if any(each.get("resumed") for each in times):
        return f"{duration(took)} since {'it was' if len(times) == 1 else 'some were'} resumed"
    if not all("estimated_seconds" in each for each in times):
        return duration(took)
    estimated = sum(each["estimated_seconds"] for each in times)
    return f"{duration(took)}, estimated {duration(estimated)} ({estimated / max(took, 0.001) - 1:+.0%})"


def _of_a_plan(options: Mapping[str, Any]) -> dict[str, Any]:
    """An estimate is made in this process, whichever engine will run."""
    return {
        name: value for name, value in options.items() if name not in ("engine", "workers", "address", "progress_style")
    }


def _write(path: Path, text: str) -> None:
    with clear_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (text.rstrip("\n") + "\n").encode())


def plan_of_run(run: PaperRun, cost: CostEstimate) -> str:
    """What a run takes and what it is for, in some lines."""
    lines = [f"{run.name}  ({run.describe()})", *(f"  {line}" for line in cost.lines()[1:])]
    return "\n".join([*lines, f"  for        {', '.join(run.studies)}"])


def plan_of_all(costs: Sequence[tuple[PaperRun, CostEstimate]]) -> str:
    """All runs together in a line, and in another what each model and the longest run have of the time."""
    seconds = max(sum(cost.whole for _, cost in costs), 1e-9)
    memory, disk = max(cost.memory for _, cost in costs), sum(cost.disk for _, cost in costs)
    slowest, most = max(costs, key=lambda entry: entry[1].whole)
    shares = {run.model: 0.0 for run, _ in costs}
    for run, cost in costs:
        shares[run.model] += cost.whole / seconds
    listed = ", ".join(f"{model} {share:.0%}" for model, share in shares.items())
    return (
        f"all runs ({len(costs)}): {sum(cost.tokens for _, cost in costs):,} tokens, {duration(seconds)},"
        f" {size(memory)} of memory, {size(disk)} of disk\n"
        f"of the time: {listed}; the longest run, {slowest.name}, {most.whole / seconds:.0%}"
    )
