"""From a call of `measure` to a plan: what to load, which rows, how they are encoded, and the manifest of the run.

`ModelFacts` is what the driver of a run must know of a model that may live in another process. `QuestionEncoder` turns
rows into questions, with each reference token's place in the text where it is asked for.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch

from loopscope._version import __version__
from loopscope.errors import LoopscopeError, setting
from loopscope.measuring.batching import Question, Span
from loopscope.measuring.config import LongPolicy, MeasureConfig
from loopscope.models.families.config import FamilyConfig
from loopscope.models.identity import model_identity
from loopscope.models.initial_state import InitialState, Rule
from loopscope.models.layers.attention import runs_unpadded
from loopscope.models.load import ModelCard, card_of
from loopscope.models.packing import common_prefix
from loopscope.models.protocol import LoopedModel
from loopscope.store.hashing import code_sha256, ids_sha256
from loopscope.store.manifest import BatchInfo, Dtypes, Manifest, ModelInfo, TaskInfo
from loopscope.store.schema import Level
from loopscope.tasks.encoding import Encoder, Example, LoadedTask, Row, Split
from loopscope.tasks.lengths import fit_length, survey_lengths

if TYPE_CHECKING:
    from loopscope.models.protocol import LoopedModel


def token_spans(tokenizer: Any, row: Row, example: Example, split: Split) -> tuple[tuple[Span, ...], ...] | None:
    """For each sequence the characters of its reference or option text that each scored token covers.

    A token that begins before the text (a blank that belongs to the context) begins at 0. Tokens that share one
    character, as the bytes of an emoji do, share its place. Token ids have the text that stands for each. None for a
    tokenizer without offsets.
    """
    if row.ids is not None:
        ends = [list(accumulate(map(len, pieces), initial=0)) for pieces in row.ids.pieces]
        return tuple(tuple(Span(*place) for place in pairwise(places)) for places in ends)
    offsets_of = getattr(tokenizer, "offsets", None)
    if offsets_of is None:
        return None
    found = []
    for (lead, scored_text), sequence in zip(row.pairs, example.sequences, strict=True):
        before = "" if split == "separate" else row.context + lead
        offsets = offsets_of(before + scored_text)
        if offsets is None:
            return None
        places = [(max(start - len(before), 0), max(end - len(before), 0)) for start, end in offsets]
        scored = places[-len(sequence.targets) :]
        found.append(tuple(Span(start + len(lead), end + len(lead)) for start, end in scored))
    return tuple(found)


@dataclass(frozen=True)
class ModelFacts:
    """A loaded model without its weights.

    Attributes:
        info: what the manifest says of it.
        vocabulary_size: token ids that it can embed.
        max_positions: the longest sequence, if there is a limit.
        device_type: "cpu", "cuda".
        device_name: the device as its maker calls it.
        seeds: of what is drawn at random, by name: random weights, an initial state.
        initial_state: the rule by which H_0 is drawn, if it is.
        shares_context: whether it runs options that share a row.
        unpadded: whether it runs all sequences of a batch in one row, without padding.
        trained_clock: steps after which a step that knows its time leaves what it was trained for; else None.
        args: what its factory was called with.
    """

    info: ModelInfo
    vocabulary_size: int
    max_positions: int | None
    device_type: str
    device_name: str
    seeds: dict[str, int]
    shares_context: bool
    trained_clock: int | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    initial_state: Rule | None = None
    unpadded: bool = False

    def leaving_clock(self, deepest: int) -> str | None:
        """The line about steps that leave the trained time, where the deepest state asked for needs such steps."""
        if self.trained_clock is None or deepest <= self.trained_clock:
            return None
        return (
            f"{self.info.name}: steps know their time and were trained for {self.trained_clock}; "
            f"those up to depth {deepest} leave the trained range"
        )


def facts_of(model: LoopedModel) -> ModelFacts:
    """The facts of a model that `load_model` returned."""
    card = card_of(model)
    config = getattr(model, "config", None)
    info = ModelInfo(
        spec=card.spec,
        name=card.name,
        family=card.family,
        revision=card.revision,
        weights=_weights(model, card),
        config_sha256=card.sha256.get("config.json"),
        dtype=card.dtype,
        affine_readout=model.head is not None,
        boundary=card.boundary,
        trained_depth=card.trained_depth,
        design=config.design if isinstance(config, FamilyConfig) else {},
        random_weights=card.random,
        toy=card.kind == "embedded",
    )
    return ModelFacts(
        info,
        model.vocabulary_size,
        getattr(model, "max_positions", None),
        model.device.type,
        _device_name(model.device),
        _seeds(model, card),
        bool(getattr(model, "shares_context", False)),
        card.trained_clock,
        card.args,
        _rule(model),
        runs_unpadded(model),
    )


def _weights(model: LoopedModel, card: ModelCard) -> dict[str, str]:
    """The hashes of the files that the weights were read from; of the model in memory where there are none."""
    files = {name: digest for name, digest in card.sha256.items() if name.endswith(".safetensors")}
    return files if files or card.random else model_identity(model)


def _seeds(model: LoopedModel, card: ModelCard) -> dict[str, int]:
    drawn = getattr(model, "initial_state", None)
    seeds = {"initial_state": drawn.seed} if isinstance(drawn, InitialState) else {}
    return seeds | ({"random_weights": card.seed} if card.random and card.seed is not None else {})


def _rule(model: LoopedModel) -> Rule | None:
    drawn = getattr(model, "initial_state", None)
    return drawn.rule if isinstance(drawn, InitialState) else None


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({platform.machine()})"


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


_TOGETHER = 64
"""Rows whose texts are encoded at a time."""


class QuestionEncoder:
    """Rows to questions: the task's wording and split, the tokenizer, the length policy.

    `spans` asks for the tokens' places in the text, `share` for what the options of a question have in common.
    """

    def __init__(
        self,
        tokenizer: Encoder | None,
        allowed: int | None,
        policy: LongPolicy,
        *,
        spans: bool = False,
        share: bool = False,
    ) -> None:
        self._tokenizer, self._allowed, self._policy = tokenizer, allowed, policy
        self._spans, self._share = spans, share

    def questions(self, task: LoadedTask, rows: Sequence[Row], first: int) -> list[Question]:
        """Rows of a task, encoded and fitted; `first` is the place of the first of them in the run."""
        encoded = zip(rows, self._examples(task, rows), strict=True)
        return [self._question(task, row, example, place) for place, (row, example) in enumerate(encoded, first)]

    def _question(self, task: LoadedTask, row: Row, example: Example, place: int) -> Question:
        fitted = example if self._allowed is None else fit_length(example, self._allowed, self._policy)
        assert fitted is not None, "skipped rows are not planned"
        spans = token_spans(self._tokenizer, row, fitted, task.encoding) if self._spans else None
        shared = common_prefix([sequence.token_ids for sequence in fitted.sequences]) if self._share else 0
        return Question(place, fitted, row, spans, shared)

    def _examples(self, task: LoadedTask, rows: Sequence[Row]) -> Iterator[Example]:
        """The rows, a few of them at a time."""
        for start in range(0, len(rows), _TOGETHER):
            some = rows[start : start + _TOGETHER]
            tokenizer = task.together(self._tokenizer, some)
            yield from (self._encode(tokenizer, task, row) for row in some)

    def _encode(self, tokenizer: Encoder | None, task: LoadedTask, row: Row) -> Example:
        try:
            return task.encode_row(tokenizer, row)
        except LoopscopeError as error:
            raise LoopscopeError(f"{task.spec}, question {row.id}: {error}") from error

    def plan(self, task: LoadedTask, limit: int | None) -> PlannedTask:
        """Look at every row once: what does not fit is refused, cut later or left out, as the policy says."""
        allowed = sys.maxsize if self._allowed is None else self._allowed

        survey = survey_lengths(self._examples(task, task.rows), allowed)
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


def settings_for(config: MeasureConfig, facts: ModelFacts) -> MeasureConfig:
    """The settings with the updates that are meant where none are named, and with batches that suit the model."""
    config = config.beyond(facts.info.trained_depth, facts.info.name)
    return config.on(facts.device_type, unpadded=facts.unpadded)


def check_sharing(settings: MeasureConfig, facts: ModelFacts) -> None:
    """Refuse to pack options into a row for a model that would read it as one text."""
    if settings.share_context and not facts.shares_context:
        raise LoopscopeError(
            f"{facts.info.name} does not say that it runs options side by side (`shares_context`):"
            f" leave out {setting('share_context', True)}"
        )
    if settings.share_context and facts.initial_state not in (None, "question"):
        raise LoopscopeError(
            f"{facts.info.name} draws its initial state sequence by sequence:"
            f" leave out {setting('share_context', True)}, or choose {setting('initial_state', 'question')}"
        )


def build_manifest(
    facts: ModelFacts,
    tokenizer_sha256: str | None,
    planned: Sequence[PlannedTask],
    settings: MeasureConfig,
    command_line: Sequence[str],
) -> Manifest:
    """What identifies the run: everything that decides a number, with the hashes of what was read."""
    batch = settings.batch
    chosen = settings.for_manifest() | {"model_args": dict(facts.args), "initial_state": facts.initial_state}
    # What a run does not name is the rule "question".
    needless = {"initial_state": facts.initial_state in (None, "question"), "model_args": not facts.args}
    # Where there is nothing to interpolate.
    needless["interpolate"] = facts.info.affine_readout or settings.level is Level.QUICK or not settings.transitions
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
        dtypes=Dtypes(states=facts.info.dtype, readout=settings.readout_dtype),
        device=facts.device_name,
        libraries={"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}},
        seeds=facts.seeds,
        batch=BatchInfo(
            policy=batch.name, size=batch.size, token_budget=batch.budget, padding=batch.padding or "right"
        ),
        unit_size=settings.unit_size,
        settings={name: value for name, value in chosen.items() if not needless.get(name)},
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
