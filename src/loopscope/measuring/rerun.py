"""A run's model and questions, loaded again: for `verify` and for policies that act on the model.

A run directory may come from anybody. Nothing in it that names code, a template or a task file is followed: what of
these a run was measured with is followed only where the user names it again (`Named`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.measuring.arguments import canonical
from loopscope.measuring.batch_policy import BatchPolicy
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.loading import load_configured_model, load_configured_tokenizer, load_tasks
from loopscope.measuring.plan import ModelFacts, QuestionEncoder, facts_of
from loopscope.measuring.run import Prepared, chat_of, prepare, tasks_first
from loopscope.models.in_memory import ModelSpec, is_factory
from loopscope.models.initial_state import SEED
from loopscope.models.protocol import LoopedModel
from loopscope.models.registry import parse_name
from loopscope.models.tokenizer import Tokenizer, load_tokenizer
from loopscope.models.user_models import OBJECT
from loopscope.store.manifest import Difference, Manifest, differences
from loopscope.store.run import StoredRun
from loopscope.tasks.encoding import GivenIds, LoadedTask, Row
from loopscope.tasks.load import is_task_file
from loopscope.tasks.own_task import Task
from loopscope.tasks.source_rows import is_data_file

CIRCUMSTANCES = (
    "loopscope_version",
    "code_sha256",
    "device",
    "libraries",
    "model.spec",
    "model.name",
    "model.revision",
)
"""What may differ between two runs whose numbers are compared; then rounding may differ, too."""


_GIVEN_IDS = ("prompt_ids", "continuation_ids")


class NotNamedError(LoopscopeError):
    """A run was measured with something that is followed only where the user names it."""


@dataclass(frozen=True)
class Named:
    """What the user names in a command that computes a run's states again.

    Attributes:
        model: the model; needed where the run was measured with code or with a model in memory.
        tasks: tasks in files, as `measure` takes them, each in place of the run's task of the same name.
        template: the template file, where the run was given one.
        tokenizer: the tokenizer; needed where the run was given an object.
        data_dir: where the benchmarks are, if they have moved.
        device: where to compute; the run's own kind of device where left out.
    """

    model: ModelSpec | None = None
    tasks: tuple[str | Task | LoadedTask, ...] = ()
    template: str | None = None
    tokenizer: Any = None
    data_dir: str | os.PathLike[str] | None = None
    device: str | None = None


def config_of(run: StoredRun, named: Named) -> MeasureConfig:
    """The call that made the run, from its manifest and, for where its sources were, from its log.

    Raises:
        NotNamedError: the run was measured with code, a template or a task file that `named` does not name.
    """
    manifest = run.manifest
    called: Mapping[str, Any] = next((e for e in reversed(run.events) if e.get("event") == "call"), {})
    fewshot_split = manifest.settings.get("fewshot_split")
    if isinstance(fewshot_split, str) and is_data_file(fewshot_split):
        raise NotNamedError(
            "its few-shot examples come from a data file, which is not followed from a run directory: measure it again"
        )
    if called.get("template") is not None and named.template is None:
        raise NotNamedError(
            f"it was measured with the template {shown(called['template'])}, which is followed only where you name it:"
            f" {setting('template')}"
        )
    unknown = [name for name in manifest.settings if name not in MeasureConfig.model_fields]
    if unknown:
        raise LoopscopeError(f"it was measured with {unknown[0]}, which this version of loopscope does not know")
    batch = manifest.batch
    given: dict[str, Any] = {
        **manifest.settings,
        "interpolate": bool(manifest.settings.get("interpolate")),
        "model": _model(called, manifest) if named.model is None else named.model,
        "model_args": _args(manifest, named.model),
        "device": named.device or ("cpu" if manifest.device.startswith("cpu") else "cuda"),
        "dtype": manifest.dtypes.states,
        "readout_dtype": manifest.dtypes.readout,
        "tokenizer": _tokenizer(called.get("tokenizer"), named.tokenizer),
        "initial_seed": _initial_seed(manifest),
        "allow_code": named.model is not None,
        "tasks": _tasks(run, called, named),
        "data_dir": called.get("data_dir") if named.data_dir is None else named.data_dir,
        "template": named.template,
        "limit": called["limit"] if "limit" in called else {t.name: t.limit for t in manifest.tasks if t.limit},
        "ids": called.get("ids"),
        "batch": BatchPolicy(batch.policy, batch.size, batch.token_budget, batch.padding),  # type: ignore[arg-type]
        "unit_size": manifest.unit_size,
        "progress": "none",
    }
    given |= {name: getattr(manifest, name) for name in ("transitions", "depths", "level", "tokens", "paths")}
    return MeasureConfig(**given)


def why_not_named(run: StoredRun, named: Named) -> str | None:
    """What a run needs to be named before it can be computed again, in one line; None where nothing is missing."""
    try:
        config_of(run, named)
    except NotNamedError as error:
        return str(error)
    except LoopscopeError:  # whatever else is wrong is reported by what computes it
        pass
    return None


def _model(called: Mapping[str, Any], manifest: Manifest) -> str:
    """The specification, a folder as the run's own call meant it; code must be named."""
    spec, folder, revision = manifest.model.spec, called.get("folder"), called.get("revision")
    if spec.startswith(OBJECT):
        raise NotNamedError(
            f"it was measured with a model in memory ({shown(spec.removeprefix(OBJECT))}):"
            " run.verify(model=model) takes it"
        )
    if folder is not None and not Path(spec).is_absolute() and (Path(folder) / spec).is_dir():
        spec = str(Path(folder) / spec)
    if parse_name(spec).is_code:
        raise NotNamedError(
            f"it was measured with code ({shown(spec)}), which runs only where you name it: {setting('model')}"
        )
    return spec if revision is None or spec.endswith(f"@{revision}") else f"{spec}@{revision}"


def _tasks(run: StoredRun, called: Mapping[str, Any], named: Named) -> tuple[Any, ...]:
    by_name = {canonical(task): task for task in named.tasks}
    found: list[Any] = []
    for spec in called.get("tasks") or [f"{task.name}:{task.subset or task.split}" for task in run.manifest.tasks]:
        if isinstance(spec, dict):
            found.append(_given_task(run, spec["given"]))
        elif canonical(spec) in by_name:
            found.append(by_name.pop(canonical(spec)))
        elif is_task_file(spec):
            raise NotNamedError(
                f"its task {shown(canonical(spec))} comes from a file, which is followed only where you name it:"
                f" {setting('tasks', spec)}"
            )
        else:
            found.append(spec)
    if by_name:
        there = ", ".join(task.name for task in run.manifest.tasks)
        raise LoopscopeError(f"{setting('tasks')} names {shown(next(iter(by_name)))}: the run has {there}")
    return tuple(found)


def _given_task(run: StoredRun, name: str) -> LoadedTask:
    """The measured rows of a task as the run stores them, few-shot examples and chat template included."""
    (info,) = (task for task in run.manifest.tasks if task.name == name)
    examples = run.examples.filter(pl.col("task") == name).sort("row")
    pieces = _pieces(run, name) if run.manifest.tokens else {}
    rows = tuple(_given_row(entry, pieces) for entry in examples.iter_rows(named=True))
    texts = "separate" if info.kind == "solution" else "joint"
    return LoadedTask(
        name=name,
        spec=name,
        kind=info.kind,
        split=info.split,
        subset=info.subset,
        source="the run",
        source_rows=info.rows_available,
        data_hash=info.data_sha256,
        template="as stored",
        template_hash=info.template_sha256,
        encoding="ids" if rows[0].ids is not None else texts,  # type: ignore[arg-type]
        rows=rows,
        special_tokens=not run.manifest.settings.get("apply_chat_template"),
        given=True,
    )


def _given_row(entry: dict[str, Any], pieces: dict[tuple[int, int], tuple[str, ...]]) -> Row:
    texts = tuple(entry["options"] or [entry["reference"]])
    metadata = json.loads(entry["metadata"] or "{}")
    given = [metadata.pop(name, None) for name in _GIVEN_IDS]
    ids = None
    if given[0] is not None:
        prompt, continuations = given
        shown = tuple(pieces.get((entry["row"], option), ()) for option in range(len(continuations)))
        ids = GivenIds(tuple(prompt), tuple(map(tuple, continuations)), shown)
    return Row(
        entry["example_id"],
        entry["source_row"],
        entry["prompt"],
        texts,
        entry["correct_option"],
        metadata,
        ids=ids,
    )


def _pieces(run: StoredRun, name: str) -> dict[tuple[int, int], tuple[str, ...]]:
    """A text as long as each scored token's, by question and option: places are all that is asked of it."""
    first = run.manifest.transitions[0]
    tokens = run.tokens.filter(pl.col("task") == name, pl.col("transition") == first)
    columns = tokens.select("row", "option", "token", "text_start", "text_end").collect().sort("row", "option", "token")
    found: dict[tuple[int, int], tuple[str, ...]] = {}
    for (row, option), group in columns.drop_nulls().group_by(["row", "option"], maintain_order=True):
        lengths = (group["text_end"] - group["text_start"]).to_list()
        found[int(str(row)), int(str(option))] = tuple("x" * length for length in lengths)
    return found


def _tokenizer(called: Any, given: Any) -> Any:
    if given is not None:
        return given if isinstance(given, str) else load_tokenizer(given)
    if isinstance(called, dict):
        raise LoopscopeError(
            f"the run was given {shown(str(called.get('given')))} as its tokenizer: name a file of it with"
            f" {setting('tokenizer')}"
        )
    return called


def _initial_seed(manifest: Manifest) -> int | None:
    """Another seed of H_0 than the usual one, which older manifests name for models that draw none."""
    seed = manifest.seeds.get("initial_state")
    return None if seed == SEED else seed


def _args(manifest: Manifest, model: ModelSpec | None) -> Mapping[str, Any]:
    """What made the run's model, unless an object is given that is made already."""
    made = model is not None and not isinstance(model, str | os.PathLike) and not is_factory(model)
    args = manifest.settings.get("model_args")
    drawn = {"random_weights": True, "seed": manifest.seeds.get("random_weights", 0)}
    found = drawn if manifest.model.random_weights else {}
    return {} if made else found | (args if isinstance(args, dict) else {})


@dataclass(frozen=True)
class Sources:
    """Model, tokenizer and rows of a run, loaded again.

    Attributes:
        differences: what is not as it was.
        refused: those of them that may not differ.
    """

    config: MeasureConfig
    model: LoopedModel
    facts: ModelFacts
    tokenizer: Tokenizer | None
    prepared: Prepared
    differences: list[Difference]
    refused: list[Difference]

    @classmethod
    def of(cls, run: StoredRun, named: Named) -> Sources:
        """Load what a run was measured with."""
        config, loaded = tasks_first(config_of(run, named))
        model = load_configured_model(config)
        facts = facts_of(model)
        tokenizer = load_configured_tokenizer(config, model)
        if loaded is None:
            loaded = load_tasks(config, chat_of(tokenizer))
        prepared = prepare(config, loaded, facts, tokenizer)
        # The batches are those of the run, whatever this device would have been given.
        tasks = tuple(
            run.manifest.task(info.name, info.split) if task.given else info
            for info, task in zip(prepared.manifest.tasks, loaded, strict=True)
        )
        rebuilt = prepared.manifest.model_copy(update={"batch": run.manifest.batch, "tasks": tasks})
        found = differences(run.manifest, rebuilt)
        refused = [entry for entry in found if not entry.field.startswith(may_differ(run.manifest))]
        return cls(config, model, facts, tokenizer, prepared, found, refused)

    def check(self) -> None:
        """Refuse other sources than those of the run."""
        if self.refused:
            raise LoopscopeError(f"{OTHER_SOURCES}: {self.refused[0]}")

    def encoder(self, *, spans: bool, share: bool) -> QuestionEncoder:
        """Rows to questions."""
        return QuestionEncoder(self.tokenizer, self.facts.max_positions, self.config.long, spans=spans, share=share)


OTHER_SOURCES = "not the sources of the run"


def may_differ(manifest: Manifest) -> tuple[str, ...]:
    """The fields that may differ: circumstances, and what a run does not know of its model in memory."""
    held = manifest.model.weights
    if not held:
        return (*CIRCUMSTANCES, "model.weights.")
    return (
        CIRCUMSTANCES if any(name.startswith("value ") for name in held) else (*CIRCUMSTANCES, "model.weights.value ")
    )
