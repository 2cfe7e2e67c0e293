"""From flags to a plan: which rows are measured, with which tokenizer, and the manifest that identifies the run."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from pydantic import JsonValue

from loopscope._errors import LoopscopeError
from loopscope._version import __version__
from loopscope.measure.batches import Question
from loopscope.measure.settings import LongPolicy, Settings
from loopscope.models.card import ModelCard
from loopscope.models.initial_state import SEED
from loopscope.models.load import card_of
from loopscope.models.protocol import LoopedModel
from loopscope.store.hashing import code_sha256, ids_sha256, sha256_file
from loopscope.store.manifest import BatchInfo, Dtypes, Manifest, ModelInfo, TaskInfo
from loopscope.tasks.encoding import Encoder, encode_row
from loopscope.tasks.example import Example, Row
from loopscope.tasks.lengths import fit_length, survey_lengths
from loopscope.tasks.loaded import LoadedTask

_LIBRARIES = ("torch", "numpy", "tokenizers", "pyarrow", "safetensors")


@dataclass(frozen=True)
class PlannedTask:
    """A task whose rows are chosen: text only, so that a run's memory does not grow with its encoding.

    Attributes:
        task: where the rows come from.
        rows: those that are measured, in order; `row` of the tables counts them.
        skipped: identifiers left out by the length policy.
        positions: valid token positions of all rows together.
    """

    task: LoadedTask
    rows: tuple[Row, ...]
    skipped: tuple[str, ...]
    positions: int


class QuestionEncoder:
    """Rows to questions: the task's wording and split, the tokenizer, the length policy."""

    def __init__(self, tokenizer: Encoder, allowed: int | None, policy: LongPolicy) -> None:
        self._tokenizer, self._allowed, self._policy = tokenizer, allowed, policy

    def questions(self, task: LoadedTask, rows: Sequence[Row], first: int) -> list[Question]:
        """Rows of a task, encoded and fitted; `first` is the place of the first of them in the run."""
        return [Question(first + index, self._fit(task, row), row) for index, row in enumerate(rows)]

    def _fit(self, task: LoadedTask, row: Row) -> Example:
        example = encode_row(self._tokenizer, row, task.encoding)
        fitted = example if self._allowed is None else fit_length(example, self._allowed, self._policy)
        assert fitted is not None, "skipped rows are not planned"
        return fitted

    def plan(self, task: LoadedTask) -> PlannedTask:
        """Look at every row once: what does not fit is refused, cut later or left out, as the policy says."""
        allowed = sys.maxsize if self._allowed is None else self._allowed
        positions: list[int] = []

        def examples() -> Iterator[Example]:
            for row in task.rows:
                example = encode_row(self._tokenizer, row, task.encoding)
                positions.append(sum(min(len(s.token_ids), allowed) for s in example.sequences))
                yield example

        survey = survey_lengths(examples(), allowed)
        survey.check(self._policy)
        skipped = {long.id for long in survey.too_long} if self._policy == "skip" else set()
        kept = [(row, count) for row, count in zip(task.rows, positions, strict=True) if row.id not in skipped]
        if not kept:
            raise LoopscopeError(f"{task.spec}: no row is left; {survey.describe()}")
        left_out = tuple(row.id for row in task.rows if row.id in skipped)
        return PlannedTask(task, tuple(row for row, _ in kept), left_out, sum(count for _, count in kept))


def build_manifest(
    model: LoopedModel,
    tokenizer_path: Path | None,
    planned: Sequence[PlannedTask],
    settings: Settings,
    *,
    limit: int | None,
    extra: dict[str, JsonValue],
    command_line: Sequence[str],
) -> Manifest:
    """What identifies the run: everything that decides a number, with the hashes of what was read."""
    batch = settings.batch
    return Manifest(
        loopscope_version=__version__,
        code_sha256=code_sha256(),
        model=_model_info(model, card_of(model)),
        tokenizer_sha256=None if tokenizer_path is None else sha256_file(tokenizer_path),
        tasks=tuple(_task_info(task, limit) for task in planned),
        transitions=settings.transitions,
        depths=settings.depths,
        level=settings.level,
        tokens=settings.tokens,
        paths=settings.paths,
        dtypes=Dtypes(states=_name(model.dtype), readout=settings.readout_dtype),
        device=_device_name(model.device),
        libraries=_versions(),
        seeds={"initial_state": SEED},
        batch=BatchInfo(policy=batch.name, size=batch.size, token_budget=batch.budget),
        unit_size=settings.unit_size,
        settings={"scalar_checks": settings.scalar_checks, "exit_threshold": settings.exit_threshold, **extra},
        command_line=tuple(command_line),
    )


def _model_info(model: LoopedModel, card: ModelCard) -> ModelInfo:
    weights = {name: digest for name, digest in card.sha256.items() if name.endswith(".safetensors")}
    return ModelInfo(
        spec=card.spec,
        name=card.name,
        family=card.family,
        revision=card.revision,
        weights=weights,
        config_sha256=card.sha256.get("config.json"),
        dtype=card.dtype,
        affine_readout=model.head is not None,
        boundary=card.boundary,
        trained_depth=card.trained_depth,
        random_weights=card.random,
        toy=card.kind == "embedded",
    )


def _task_info(planned: PlannedTask, limit: int | None) -> TaskInfo:
    task = planned.task
    return TaskInfo(
        name=task.name,
        split=task.split,
        subset=task.subset,
        kind=task.kind,
        rows=len(planned.rows),
        rows_available=task.source_rows,
        limit=limit,
        ids_sha256=ids_sha256(row.id for row in planned.rows),
        data_sha256=task.data_hash,
        template_sha256=task.template_hash,
        skipped=planned.skipped,
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({platform.machine()})"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}}
