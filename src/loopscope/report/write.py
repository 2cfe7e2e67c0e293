"""`write_report`: runs in, one HTML file out."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loopscope._version import __version__
from loopscope.errors import LoopscopeError, command_line_words, text, whole
from loopscope.path import GRID, PATH_NODES
from loopscope.report import study_pages
from loopscope.report.assemble import document
from loopscope.report.details import CHUNK, Details, Precision, TokenTable
from loopscope.report.evaluation_set import EvaluationSet, TextChunks, index, sets_of
from loopscope.report.lens import LENS_QUESTIONS, Lens
from loopscope.report.opening import Candidate, opening
from loopscope.report.overview import EXPLAINED, FACTS, NEEDED_TABLES, Overview, Tables
from loopscope.report.pack import pack
from loopscope.report.provenance import provenance, warnings_of
from loopscope.report.training import training_views
from loopscope.stats import Bootstrap
from loopscope.store import StoredRun
from loopscope.store.atomic import clear_write_errors, require_plain, write_atomically
from loopscope.studies.conditions import place_of, run_labels
from loopscope.studies.records import Records
from loopscope.studies.registry import open_records

MOST_QUESTIONS = 1_000_000_000
PATH_NUMBERS = 2_000_000
"""FP64 paths go along up to this many numbers in all: about 10 MB of page."""


def write_report(
    runs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    bootstrap: Bootstrap | None = None,
    *,
    lens_questions: int = LENS_QUESTIONS,
    with_command: bool = False,
) -> Path:
    """Write one self-contained page about some runs.

    Args:
        runs: run directories; several are shown side by side.
        output: the HTML file; it is replaced where it exists.
        bootstrap: resamples, seed and level; the paper's by default.
        lens_questions: of how many questions of each task the page holds what the model would say after every loop.
        with_command: show the command line, the paths and the arguments of the model, which are left out by default.

    Returns:
        The file.
    """
    target = Path(text("output", output))
    if target.is_dir():
        raise LoopscopeError(f"{target} is a folder: name a file, such as {target / 'report.html'}")
    require_plain(target)
    records = open_records(runs)
    if not records.runs:
        raise LoopscopeError("a monitor's log holds no question to show: name run directories, too")
    most = whole("lens_questions", lens_questions, 0, MOST_QUESTIONS)
    chosen = [] if most == LENS_QUESTIONS else ["--lens-questions", str(most)]
    again = shlex.join(["loopscope", "report", *map(str, runs), "--output", str(target), *chosen, "--with-command"])
    page = Page(records, bootstrap or Bootstrap(), again if with_command else None, most)
    with clear_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    # The page speaks of commands, whoever writes it.
    with command_line_words():
        content = "".join(page.pieces())
    write_atomically(target, content.encode())
    return target


class Page:
    """What goes into the file."""

    def __init__(
        self, records: Records, bootstrap: Bootstrap, again: str | None = None, lens_questions: int = LENS_QUESTIONS
    ) -> None:
        self.records = records
        self.again = again
        self.lens_questions = lens_questions
        self.sets = [(run, sets_of(run)) for run in records.runs]
        self.bootstrap = bootstrap
        flat = [data for _, sets in self.sets for data in sets]
        self.precision = Precision.of(sum(_token_rows(data) for data in flat))
        stored = sum(len(data) * len(data.updates) * PATH_NODES for data in flat if data.run.manifest.paths)
        self.paths = 0 < stored <= PATH_NUMBERS
        self.late: list[tuple[str, str]] = []

    def pieces(self) -> list[str]:
        """The file in order."""
        tables = study_pages.compute_tables(self.records, self.bootstrap)
        early: list[tuple[str, str]] = []
        runs, candidates = [], []
        labels = run_labels([run for run, _ in self.sets])
        for number, (run, sets) in enumerate(self.sets):
            overview = self._overview(run, tables)
            described = []
            for place, data in enumerate(sets):
                name = f"s{number}-{place}"
                early.append((name, index(data)))
                summary = overview.of(data)
                described.append(self._set(name, data) | {"overview": summary})
                candidates.append(Candidate(name, data, summary["leading"], summary["declines"]))
            runs.append(_run(run, labels[number], self.again is not None) | {"sets": described})
        studies = study_pages.study_pages(self.records, self.bootstrap, tables)
        self.late.insert(0, ("studies", pack({}, studies)))
        places = {place_of(run): label for (run, _), label in zip(self.sets, labels, strict=True)}
        followed = training_views(self.records, places, self.bootstrap)
        self.late.insert(1, ("training", pack({}, {"trainings": followed})))
        meta = {
            "version": __version__,
            "grid": list(GRID),
            "chunk": CHUNK,
            "precision": self.precision.value,
            "level": self.bootstrap.level,
            "resamples": self.bootstrap.resamples,
            "warnings": warnings_of([run for run, _ in self.sets], self.again),
            "opening": opening(candidates),
            "explained": {"steps": EXPLAINED, "facts": FACTS},
            "runs": runs,
            "trainings": len(followed),
        }
        early.insert(0, ("meta", pack({}, meta)))
        return list(document(_title([run for run, _ in self.sets]), early, self.late))

    def _overview(self, run: StoredRun, tables: Tables) -> Overview:
        """One run's numbers; two runs may be alike in everything a condition names, so each is looked up alone."""
        if len(self.sets) == 1:
            return Overview(self.records, tables, self.bootstrap)
        alone = Records([run])
        return Overview(alone, study_pages.compute_tables(alone, self.bootstrap, NEEDED_TABLES), self.bootstrap)

    def _set(self, name: str, data: EvaluationSet) -> dict[str, Any]:
        tokens = TokenTable.of(data, self.precision) if data.run.manifest.tokens else None
        details = Details.of(data, tokens, paths=self.paths and data.run.manifest.paths)
        texts = TextChunks(data)
        self.late += [(f"{name}-t{at}", packed) for at, packed in enumerate(texts.packed)]
        self.late += [(f"{name}-d{at}", packed) for at, packed in enumerate(details.chunks())]
        lens = Lens.of(data, self.lens_questions)
        if lens is not None:
            self.late.append((f"{name}-lens", lens.index()))
            self.late += [(f"{name}-l{at}", packed) for at, packed in enumerate(lens.chunks())]
        condition = data.condition
        return {
            "name": name,
            "task": f"{condition.task}/{condition.split}",
            "title": condition.set_title,
            "kind": condition.kind,
            "affine": condition.affine,
            "questions": len(data),
            "expected": condition.expected,
            "transitions": list(data.transitions),
            "depths": list(data.depths),
            "texts": texts.starts,
            "lens": None if lens is None else lens.described(),
        }


def _run(run: StoredRun, label: str, with_command: bool) -> dict[str, Any]:
    model = run.manifest.model
    return {
        "label": label,
        "model": model.name,
        "family": model.family,
        "random": model.random_weights,
        "toy": model.toy,
        "trained_depth": model.trained_depth,
        "provenance": provenance(run, with_command),
    }


def _token_rows(data: EvaluationSet) -> int:
    if not data.run.manifest.tokens:
        return 0
    return int(data.examples["n_tokens"].sum()) * len(data.updates)


def _title(runs: Sequence[StoredRun]) -> str:
    models = ", ".join(dict.fromkeys(run.manifest.model.name for run in runs))
    return f"{models} · loopscope"
