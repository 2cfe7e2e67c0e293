"""`Run`: an opened run directory with the paper's tables and figures of it, and how a notebook shows it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscope.display import to_pandas, with_outcome_names
from loopscope.store.run import StoredRun

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl

    from loopscope.api import Tasks
    from loopscope.models.in_memory import ModelSpec
    from loopscope.report.question import QuestionView
    from loopscope.stats import Bootstrap
    from loopscope.store.verification import Verification
    from loopscope.studies.comparison import Comparison
    from loopscope.studies.declare import TableResult
    from loopscope.studies.figures import FigureResult


class Run(StoredRun):
    """An opened run directory: its records as frames, and the paper's tables and figures of them.

    Frames have outcomes by name ("finite-step failure"); the files hold the codes of `loopscope.Outcome`.
    """

    def read(self, table: str) -> pl.DataFrame:
        """A whole table as a frame: `questions`, `depths`, `examples`; `tokens` and `paths` where they are stored."""
        return with_outcome_names(super().read(table))

    def scan(self, table: str) -> pl.LazyFrame:
        """A table as a lazy frame over its shards; they are checked now and whenever the frame is collected."""
        return with_outcome_names(super().scan(table))

    def to_polars(self, table: str = "questions") -> pl.DataFrame:
        """A table of the run, e.g. `to_polars("depths")`; by default one row per question and update."""
        return self.read(table)

    def to_pandas(self, table: str = "questions") -> pd.DataFrame:
        """The same for pandas; outcomes are an ordered category."""
        return to_pandas(self.read(table))

    def question(
        self, id: str, transition: int | str | None = None, *, task: str | None = None, alpha: float = 1.0
    ) -> QuestionView:
        """One question at one update: a notebook draws its path and tints its tokens, `print` describes it.

        Args:
            id: its identifier, a value of `run.examples["example_id"]`.
            transition: t of the update t → t+1, or a chord such as "1>3"; the last one by default.
            task: which task, where two have a question of this name.
            alpha: the scale at which tokens are tinted.
        """
        from loopscope.report.question import question

        return question(self, id, transition, task, alpha)

    def table(self, name: str, bootstrap: Bootstrap | None = None) -> TableResult:
        """One of the paper's tables for this run, e.g. `table("mechanism")`; it prints and exports."""
        from loopscope.studies import table

        return table(name, self, bootstrap)

    def figure(self, name: str, bootstrap: Bootstrap | None = None) -> FigureResult:
        """One of the paper's figures for this run, e.g. `figure("scale-prediction").save("scale.pdf")`.

        Args:
            name: a name from `loopscope studies`.
            bootstrap: resamples, seed and level; the paper's by default.
        """
        from loopscope.studies import figure

        return figure(name, self, bootstrap)

    def summary(self) -> str:
        """What every update did, as a table: mean gain, harmful updates, finite-step failures and what recovers them.

        Of a run without updates it is the mean utility at every depth.
        """
        from loopscope.studies.runs import run_lines

        return "\n".join(run_lines(self))

    def __str__(self) -> str:
        return self.summary()

    def compare(self, bootstrap: Bootstrap | None = None) -> Comparison:
        """Every published cell that has a counterpart in this run, with the difference and a verdict."""
        from loopscope.studies.comparison import compare
        from loopscope.studies.records import Records

        return compare(Records([self]), bootstrap)

    def report(
        self, output: str | os.PathLike[str], bootstrap: Bootstrap | None = None, *, with_command: bool = False
    ) -> Path:
        """Write one self-contained HTML page about this run; `loopscope.report.write_report` takes several.

        Args:
            output: the HTML file; it is replaced where it exists.
            bootstrap: resamples, seed and level; the paper's by default.
            with_command: show the command line, the paths and the arguments of the model, too.
        """
        from loopscope.report import write_report

        return write_report([self.path], output, bootstrap, with_command=with_command)

    def push_to_hub(self, repo: str, private: bool = True) -> str:
        """Upload the run as a data set of the Hugging Face hub; gives its address.

        What is uploaded names no folder, command line or argument of the model. `loopscope.open_run("hf://owner/name")`
        reads it back, and `datasets.load_dataset("owner/name", "questions")` one of its tables.

        Args:
            repo: `owner/name` of the data set, which is made if it is new.
            private: whether only you (or your organisation) can see it.
        """
        from loopscope.hub import push_to_hub

        return push_to_hub(self, repo, private)

    def verify(
        self,
        *,
        replay: bool = False,
        bitwise: bool = False,
        model: ModelSpec | None = None,
        tasks: Tasks = (),
        template: str | os.PathLike[str] | None = None,
        tokenizer: Any = None,
        data_dir: str | os.PathLike[str] | None = None,
        device: str | None = None,
    ) -> Verification:
        """Check the directory again: hashes, counts, schema, rows and identifiers.

        Args:
            replay: also measure a sample again, as `loopscope verify` does; so it is where a source is named.
            bitwise: instead of a sample, compute everything again and compare bit for bit; `replayed.comparisons` of
                the result, kept in the run's `verification.json`, holds how many batches and values differ, and by how
                much.
            model: the model, if it has moved; a run of code or of a model in memory needs it.
            tasks: the run's tasks in files, which are followed only where they are named.
            template: the run's template file, likewise.
            tokenizer: the tokenizer, where the run was given one as an object.
            data_dir: where the benchmarks are, if they have moved.
            device: where to measure; left out, where the run was measured.
        """
        from functools import partial

        from loopscope.measuring.verify import Named, measure_again
        from loopscope.store.verification import verify

        named = Named(model, tasks, template, tokenizer, data_dir, device)
        if not (replay or bitwise) and named == Named(data_dir=data_dir, device=device):
            return verify(self)

        return verify(self, partial(measure_again, named=named, everything=bitwise))

    @property
    def backends_used(self) -> tuple[str, ...]:
        """How φ was computed, from the run's log; none are known of a run by an older version.

        Names of affine back ends ("kernel", "moments"), or for a readout that is not affine "general" (Taylor
        mode) or "nested" (nested forward mode).
        """
        logged = (event.get("names", ()) for event in self.events if event.get("event") == "ways")
        return tuple(sorted({name for names in logged for name in names}))

    def _repr_html_(self) -> str:
        from loopscope.report.notebook import run_html

        return run_html(self)
