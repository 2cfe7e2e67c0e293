"""From a request to a plan: which rows are measured, how they are encoded, and the manifest that identifies the run."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from loopscope._errors import LoopscopeError, setting
from loopscope._version import __version__
from loopscope.measure.batches import Question
from loopscope.measure.facts import ModelFacts
from loopscope.measure.settings import LongPolicy, Settings
from loopscope.measure.spans import token_spans
from loopscope.models.packing import common_prefix
from loopscope.store.hashing import code_sha256, ids_sha256
from loopscope.store.manifest import BatchInfo, Dtypes, Manifest, TaskInfo
from loopscope.tasks.encoding import Encoder, encode_row
from loopscope.tasks.example import Example, Row
from loopscope.tasks.lengths import fit_length, survey_lengths
from loopscope.tasks.loaded import LoadedTask

_LIBRARIES = ("torch", "numpy", "tokenizers", "pyarrow", "safetensors")


@dataclass(frozen=True)
class PlannedTask:
    """A task whose rows are chosen: text only, so that a run's memory does not grow with its encoding.

    Attributes:
        task: where the rows come from, without them.
        rows: those that are measured, in order; `row` of the tables counts them.
        skipped: identifiers left out by the length policy.
        limit: the limit that was given for the task.
    """

    task: LoadedTask
    rows: tuple[Row, ...]
    skipped: tuple[str, ...]
    limit: int | None


class QuestionEncoder:
    """Rows to questions: the task's wording and split, the tokenizer, the length policy.

    `spans` asks for the tokens' places in the text, `share` for what the options of a question have in common.
    """

    def __init__(
        self, tokenizer: Encoder, allowed: int | None, policy: LongPolicy, *, spans: bool = False, share: bool = False
    ) -> None:
        self._tokenizer, self._allowed, self._policy = tokenizer, allowed, policy
        self._spans, self._share = spans, share

    def questions(self, task: LoadedTask, rows: Sequence[Row], first: int) -> list[Question]:
        """Rows of a task, encoded and fitted; `first` is the place of the first of them in the run."""
        return [self._question(task, row, first + index) for index, row in enumerate(rows)]

    def _question(self, task: LoadedTask, row: Row, place: int) -> Question:
        example = self._encode(task, row)
        fitted = example if self._allowed is None else fit_length(example, self._allowed, self._policy)
        assert fitted is not None, "skipped rows are not planned"
        spans = token_spans(self._tokenizer, row, fitted, task.encoding) if self._spans else None
        shared = common_prefix([sequence.token_ids for sequence in fitted.sequences]) if self._share else 0
        return Question(place, fitted, row, spans, shared)

    def _encode(self, task: LoadedTask, row: Row) -> Example:
        try:
            return encode_row(self._tokenizer, row, task.encoding)
        except LoopscopeError as error:
            raise LoopscopeError(f"{task.spec}, question {row.id}: {error}") from error

    def plan(self, task: LoadedTask, limit: int | None) -> PlannedTask:
        """Look at every row once: what does not fit is refused, cut later or left out, as the policy says."""
        allowed = sys.maxsize if self._allowed is None else self._allowed

        def examples() -> Iterator[Example]:
            return (self._encode(task, row) for row in task.rows)

        survey = survey_lengths(examples(), allowed)
        try:
            survey.check(self._policy)
        except LoopscopeError as error:
            raise LoopscopeError(f"{task.spec}: {error}; {setting('long')} chooses the policy") from error
        skipped = {long.id for long in survey.too_long} if self._policy == "skip" else set()
        kept = tuple(row for row in task.rows if row.id not in skipped)
        if not kept:
            raise LoopscopeError(f"{task.spec}: no question is left; {survey.describe()}")
        left_out = tuple(row.id for row in task.rows if row.id in skipped)
        return PlannedTask(task.without_rows(), kept, left_out, limit)


def check_sharing(settings: Settings, facts: ModelFacts) -> None:
    """Refuse to pack options into a row for a model that would read it as one text."""
    if settings.share_context and not facts.shares_context:
        raise LoopscopeError(
            f"{facts.info.name} does not say that it runs options side by side (`shares_context`):"
            f" leave out {setting('share_context', True)}"
        )


def build_manifest(
    facts: ModelFacts,
    tokenizer_sha256: str,
    planned: Sequence[PlannedTask],
    settings: Settings,
    command_line: Sequence[str],
) -> Manifest:
    """What identifies the run: everything that decides a number, with the hashes of what was read."""
    batch = settings.batch
    return Manifest(
        loopscope_version=__version__,
        code_sha256=code_sha256(),
        model=facts.info,
        tokenizer_sha256=tokenizer_sha256,
        tasks=tuple(_task_info(task) for task in planned),
        transitions=settings.transitions,
        depths=settings.depths,
        level=settings.level,
        tokens=settings.tokens,
        paths=settings.paths,
        dtypes=Dtypes(states=facts.states_dtype, readout=settings.readout_dtype),
        device=facts.device_name,
        libraries={"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}},
        seeds=facts.seeds,
        batch=BatchInfo(policy=batch.name, size=batch.size, token_budget=batch.budget),
        unit_size=settings.unit_size,
        settings={
            "scalar_checks": settings.scalar_checks,
            "exit_threshold": settings.exit_threshold,
            "long": settings.long,
            # Only where it was chosen: a run from before there was a choice then still replays.
            **({"share_context": True} if settings.share_context else {}),
        },
        command_line=tuple(command_line),
    )


def _task_info(planned: PlannedTask) -> TaskInfo:
    task = planned.task
    return TaskInfo(
        name=task.name,
        split=task.split,
        subset=task.subset,
        kind=task.kind,
        rows=len(planned.rows),
        rows_available=task.source_rows,
        limit=planned.limit,
        ids_sha256=ids_sha256(row.id for row in planned.rows),
        data_sha256=task.data_hash,
        template_sha256=task.template_hash,
        skipped=planned.skipped,
    )
