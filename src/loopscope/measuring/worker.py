"""One model replica: loaded as a configuration names it, it measures work units: questions in, columns out.

The next batch is launched before the last one is finished, so that a GPU has something to do while the host puts rows
together. Two batches are never alive at a time: what waits is a launched batch's results, which are small. A batch that
runs out of memory is halved.
"""

from __future__ import annotations

import dataclasses
import gc
import platform
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from loopscope.errors import LoopscopeError, setting, user_code
from loopscope.measuring.batch_pass import BatchPass, Tables
from loopscope.measuring.batching import Question, example_columns, padded_tokens, plan_batches, shrunk
from loopscope.measuring.config import MeasureConfig
from loopscope.measuring.model_check import before_a_pass, checked
from loopscope.measuring.update import stacked
from loopscope.models.families import FamilyConfig
from loopscope.models.families.decoder import InitialState, Rule
from loopscope.models.in_memory import model_identity
from loopscope.models.layers.attention import runs_unpadded
from loopscope.models.load import card_of, load_model
from loopscope.models.protocol import LoopedModel
from loopscope.models.registry import OBJECT
from loopscope.models.tokenizer import Tokenizer, load_tokenizer, no_tokenizer
from loopscope.models.walk import forget_recorded_steps
from loopscope.readout.checks import is_out_of_memory
from loopscope.store.manifest import ModelInfo, WorkUnit


def load_configured_model(config: MeasureConfig) -> LoopedModel:
    """The model, with the initial state that was asked for."""
    how: Any = {"dtype": config.dtype, "allow_code": config.allow_code}
    model = load_model(config.model, model_args=config.model_args, device=config.device, **how)
    drawn = getattr(model, "initial_state", None)
    if not isinstance(drawn, InitialState):
        for name in ("initial_state", "initial_seed"):
            if (value := getattr(config, name)) is not None:
                raise LoopscopeError(f"{model.name} draws no initial state: leave out {setting(name, value)}")
        return model
    rule = config.initial_state
    if rule is None and config.protocol == "paper" and "initial_state" not in config.model_args:
        rule = "paper"
    if rule is not None:
        drawn = dataclasses.replace(drawn, rule=rule)
    if config.initial_seed is not None:
        drawn = dataclasses.replace(drawn, seed=config.initial_seed)
    model.initial_state = drawn  # type: ignore[attr-defined]
    return model


def load_configured_tokenizer(config: MeasureConfig, model: object = None) -> Tokenizer | None:
    """The one that the user gave; none for token ids; the model's own, as an attribute or by its name."""
    if config.tokenizer is not None:
        return load_tokenizer(config.tokenizer)
    if not config.needs_tokenizer:
        return None
    attached = getattr(model, "tokenizer", None)
    if attached is not None:
        return load_tokenizer(attached)
    if isinstance(config.model, str):
        return load_tokenizer(config.model)
    checkpoint = getattr(getattr(model, "card", None), "checkpoint", None)
    if checkpoint is None:
        raise LoopscopeError(no_tokenizer(getattr(model, "name", None) or config.model_spec.removeprefix(OBJECT)))
    return load_tokenizer(checkpoint)


@dataclass(frozen=True)
class ModelFacts:
    """A loaded model without its weights, as a run that measures it in another process must know it.

    Attributes:
        info: what the manifest says of it.
        vocabulary_size: token ids that it can embed.
        max_positions: the longest sequence, if there is a limit.
        device_type: "cpu", "cuda".
        device_name: the device as its maker calls it.
        seeds: of what is drawn at random, by name: random weights, an initial state.
        shares_context: whether it runs options that share a row.
        trained_clock: steps after which a step that knows its time leaves what it was trained for; else None.
        args: what its factory was called with.
        initial_state: the rule by which H_0 is drawn, if it is.
        unpadded: whether it runs all sequences of a batch in one row, without padding.
    """

    info: ModelInfo
    vocabulary_size: int
    max_positions: int | None
    device_type: str
    device_name: str
    seeds: dict[str, int]
    shares_context: bool
    trained_clock: int | None
    args: Mapping[str, Any]
    initial_state: Rule | None
    unpadded: bool

    def settled(self, config: MeasureConfig) -> MeasureConfig:
        """The settings with the updates that are meant where none are named, and with batches that suit the model."""
        found = config.beyond(self.info.trained_depth, self.info.name)
        return found.model_copy(update={"batch": config.batch.on(self.device_type, unpadded=self.unpadded)})


def facts_of(model: LoopedModel) -> ModelFacts:
    """The facts of a model that `load_model` returned."""
    card, config, device = card_of(model), getattr(model, "config", None), model.device
    drawn = getattr(model, "initial_state", None)
    drawn = drawn if isinstance(drawn, InitialState) else None
    # The hashes of the files that the weights were read from; of the model in memory where there are none.
    weights = {name: digest for name, digest in card.sha256.items() if name.endswith(".safetensors")}
    same = ("spec", "name", "family", "revision", "dtype", "boundary", "trained_depth")
    info = ModelInfo(
        **{name: getattr(card, name) for name in same},
        weights=weights if weights or card.random else model_identity(model),
        config_sha256=card.sha256.get("config.json"),
        affine_readout=model.head is not None,
        design=config.design if isinstance(config, FamilyConfig) else {},
        random_weights=card.random,
        toy=card.kind == "embedded",
    )
    seeds = {} if drawn is None else {"initial_state": drawn.seed}
    seeds |= {"random_weights": card.seed} if card.random and card.seed is not None else {}
    on_gpu = device.type == "cuda"
    return ModelFacts(
        info,
        vocabulary_size=model.vocabulary_size,
        max_positions=getattr(model, "max_positions", None),
        device_type=device.type,
        device_name=torch.cuda.get_device_name(device) if on_gpu else f"{device.type} ({platform.machine()})",
        seeds=seeds,
        shares_context=bool(getattr(model, "unpadded", False)),
        trained_clock=getattr(model, "trained_clock", None),
        args=card.args,
        initial_state=None if drawn is None else drawn.rule,
        unpadded=runs_unpadded(model),
    )


Name = TypeVar("Name")
_NOTHING: Mapping[Any, Set[int]] = {}


class MeasuredBatch(NamedTuple):
    """Questions and token positions that are measured now."""

    questions: int
    positions: int
    begun: Measured[Any] | None = None
    """The unit, where it is measured in this process and more of its batches follow."""


@dataclass(frozen=True)
class Measured(Generic[Name]):
    """A measured unit.

    Attributes:
        unit: which one.
        batches: the columns of each batch by table, rows in any order.
        notices: what there is to say about it, one line each.
        backends_used: how φ was computed.
    """

    unit: Name
    batches: list[Tables] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    backends_used: set[str] = field(default_factory=set)

    def tables(self, first: int = 0) -> Tables:
        """The columns of all batches, or of those from `first` on."""
        batches = self.batches[first:]
        return {name: stacked([tables[name] for tables in batches]) for name in batches[0]}


class _InFlight(NamedTuple):
    """A launched batch; without a pass where memory did not suffice. The last one of its unit completes it."""

    unit: Measured[Any]
    batch: Sequence[Question]
    launched: BatchPass | None
    last: bool


class Worker:
    """Measures the questions of units with one model.

    A batch that does not fit into memory is halved, and no later batch of this worker is larger than what is left. One
    whose tokens the kernels gave up was measured twice; the worker then takes care from the start, which changes no
    number.
    """

    def __init__(self, model: LoopedModel, settings: MeasureConfig) -> None:
        self._model, self._settings = model, settings
        self._ceiling: int | None = None
        self._careful = False
        self._noted: set[str] = set()

    def run(
        self, units: Iterable[tuple[Name, Sequence[Question]]], done: Mapping[Name, Set[int]] = _NOTHING
    ) -> Iterator[Measured[Name] | MeasuredBatch]:
        """Each unit in order, after its batches, as soon as the batch after its last one is launched.

        Batches are planned for all questions of a unit; those whose rows are `done` are then left out.
        """
        before: _InFlight | None = None
        for name, questions in units:
            unit, skipped = Measured(name), done.get(name, frozenset())
            planned = plan_batches(questions, self._settings.batch)
            left = ([question for question in batch if question.row not in skipped] for batch in planned)
            waiting = deque(batch for batch in left if batch)
            while waiting:
                if self._ceiling is not None:
                    waiting = deque(shrunk(waiting, self._ceiling))
                batch = waiting.popleft()
                with user_code(f"{self._model.name} on a batch of {len(batch)}"):
                    now = _InFlight(unit, batch, self._launch(batch), last=not waiting)
                # A batch that did not fit is halved at once, so that the batches after it fit.
                for flight in (before, now if now.launched is None else None):
                    if flight is not None:
                        yield from self._complete(flight)
                before = now if now.launched is not None else None
        if before is not None:
            yield from self._complete(before)

    def _complete(self, flight: _InFlight) -> Iterator[Measured[Name] | MeasuredBatch]:
        """Finish a batch, and its unit if it is the last one of it."""
        unit, batch = flight.unit, flight.batch
        with user_code(f"{self._model.name} on a batch of {len(batch)}"):
            unit.batches.extend(self._finish(unit, batch, flight.launched))
        positions = sum(question.positions for question in batch)
        yield MeasuredBatch(len(batch), positions, None if flight.last else unit)
        if flight.last:
            yield unit

    def _launch(self, batch: Sequence[Question]) -> BatchPass | None:
        """The batch on its way; None when it did not fit."""
        try:
            return BatchPass(self._model, self._settings, batch, careful=self._careful).launch()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler: the traceback no longer keeps the tensors of the failed attempt alive.
        release()
        return None

    def _finish(self, unit: Measured[Name], batch: Sequence[Question], launched: BatchPass | None) -> list[Tables]:
        """The tables of a launched batch, or those of its halves where it did not fit."""
        try:
            if launched is not None:
                tables = launched.finish()
                unit.backends_used.update(launched.readout.backends_used)
                if tables is None:
                    self._careful = True
                    return self._finish(unit, batch, self._launch(batch))
                unit.notices.extend(sorted(launched.readout.notes - self._noted))
                self._noted |= launched.readout.notes
                return [{**tables, "examples": example_columns(batch)}]
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        release()
        if len(batch) == 1:
            raise LoopscopeError(
                f"question {batch[0].example.id} alone does not fit into memory: use a larger device,"
                f" {setting('dtype', 'bfloat16')} or a lower {setting('level')}, or choose other questions with"
                f" {setting('ids')}"
            )
        tokens = padded_tokens(batch)
        self._ceiling = tokens // 2
        unit.notices.append(
            f"out of memory with {len(batch)} questions ({tokens} padded tokens) in a batch:"
            f" going on with at most {self._ceiling} padded tokens"
        )
        halves = shrunk([batch], self._ceiling)
        return [tables for part in halves for tables in self._finish(unit, part, self._launch(part))]


def release() -> None:
    """Give back what a failed attempt left behind."""
    forget_recorded_steps()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


GivenUnit = tuple[WorkUnit, Sequence[Question]]
Step = Measured[WorkUnit] | MeasuredBatch
"""What an engine yields: each batch of a unit, then the unit."""


class LocalEngine(Worker):
    """One model in this process, loaded unless it is given."""

    def __init__(self, config: MeasureConfig, model: LoopedModel | None = None) -> None:
        self.model = load_configured_model(config) if model is None else model
        self.facts: ModelFacts = facts_of(self.model)
        settings = self.facts.settled(config)
        if card_of(self.model).is_own:
            checked(self.model, before_a_pass(settings.level, settings.readout_dtype)).require()
        self.tokenizer = load_configured_tokenizer(config, self.model)
        super().__init__(self.model, settings)
