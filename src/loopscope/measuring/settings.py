"""What a pass is asked to do, checked before anything is loaded: prompts, batches, and what is measured.

One check serves Python, flags, environment and YAML; values are read by `given_values`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from loopscope.errors import LoopscopeError, choice, parse_number, setting, whole
from loopscope.measuring.given_values import MOST_QUESTIONS, Numbers, depth_list
from loopscope.measuring.protocols import DEFAULT, find_protocol
from loopscope.store.schema import Level
from loopscope.tasks.prompting import FEWSHOT_SEED


@dataclass(frozen=True)
class Prompting:
    """What stands before a question.

    Attributes:
        num_fewshot: examples; None is none, or what a task of lm-evaluation-harness says itself.
        fewshot_split: the split or data file that they come from.
        fewshot_seed: what they are drawn from.
        apply_chat_template: whether the tokenizer's chat template is put around it all.
    """

    num_fewshot: int | None = None
    fewshot_split: str | None = None
    fewshot_seed: int = FEWSHOT_SEED
    apply_chat_template: bool = False

    def __post_init__(self) -> None:
        if self.fewshot_split is not None and not self.num_fewshot:
            raise LoopscopeError(
                f"{setting('fewshot_split', self.fewshot_split)} is where examples come from: say how many with"
                f" {setting('num_fewshot')}"
            )

    def chosen(self) -> dict[str, int | str | bool]:
        """What is not as it is by default, for a manifest: a run from before there was a choice then still replays."""
        plain = Prompting()
        fields = (field.name for field in dataclasses.fields(self))
        return {name: getattr(self, name) for name in fields if getattr(self, name) != getattr(plain, name)}

    @classmethod
    def of_manifest(cls, recorded: Mapping[str, Any]) -> tuple[Prompting, dict[str, Any]]:
        """What `chosen` recorded, and the other settings."""
        own = {field.name for field in dataclasses.fields(cls)}
        rest = {name: value for name, value in recorded.items() if name not in own}
        return cls(**{name: value for name, value in recorded.items() if name in own}), rest


LongPolicy = Literal["error", "skip", "truncate-left"]
READOUT_DTYPES = ("float32", "float64")
_BUDGETS = {"cuda": 65536}
_CPU_BUDGET = 4096


@dataclass(frozen=True)
class BatchPolicy:
    """How the questions of a work unit are put into batches.

    Attributes:
        name: "tokens" (by length, up to a budget of padded tokens), "questions" (source order, a fixed number),
            or "paper" (source order, two questions, natural padding).
        size: questions in a batch; None for "tokens".
        budget: padded tokens in a batch; None unless "tokens".
        padding: "right", or "none" where a model runs the sequences of a batch in one row; None until `on` decides.
    """

    name: Literal["tokens", "questions", "paper"]
    size: int | None = None
    budget: int | None = None
    padding: Literal["right", "none"] | None = None

    @classmethod
    def parse(cls, given: str | int) -> BatchPolicy:
        """`auto`, `paper` or a number of questions.

        >>> BatchPolicy.parse("8")
        BatchPolicy(name='questions', size=8, budget=None, padding=None)
        """
        if given == "auto":
            return cls("tokens", budget=_CPU_BUDGET)
        if given == "paper":
            return cls("paper", size=2)
        size = parse_number(given) if isinstance(given, str) else given
        if size is None:
            raise LoopscopeError(
                f"{setting('batch_size', given)} is not a number of questions: give one up to {MOST_QUESTIONS:,},"
                " `auto` or `paper`"
            )
        return cls("questions", size=whole("batch_size", size, 1, MOST_QUESTIONS))

    def on(self, device_type: str, *, unpadded: bool = False) -> BatchPolicy:
        """The same policy as it suits a kind of device and a model that may run without padding.

        The paper's batches are padded, and what was padded once stays so.
        """
        none = unpadded and self.name != "paper" and self.padding != "right"
        budget = None if self.budget is None else _BUDGETS.get(device_type, _CPU_BUDGET)
        return dataclasses.replace(self, budget=budget, padding="none" if none else "right")


@dataclass(frozen=True)
class Settings:
    """The numbers of a run depend on this, the model and the data, and on nothing else.

    Attributes:
        transitions: each t of an update t → t+1 that is analysed.
        depths: where the utility is stored; both ends of every transition are among them.
        level: how much is computed for every update.
        tokens: whether every reference token gets a row of its own.
        paths: whether the 257 nodes of the FP64 analysis are stored.
        batch: how questions are put into batches.
        unit_size: questions in a work unit.
        readout_dtype: arithmetic of the readout, the paper's FP32 by default.
        scalar_checks: questions of each task on which Q is computed a second way.
        exit_threshold: threshold of the exit gate; None takes the checkpoint's own.
        long: what happens to sequences longer than the model allows.
        share_context: whether what the options of a question have in common runs once.
        certify: whether every update gets enclosures and verdicts that no rounding can overturn.
        trace: whether every reference position gets a row after every loop.
        lens: how many of the likeliest tokens those rows hold; it needs `trace`.
        scales_to: where the scales end at which steps longer than the proposed one are measured; None measures none.
        interpolate: whether φ through a nonlinear readout is interpolated between the scales of its derivatives, where
            that is as good as evaluating it; runs that do not say so evaluated it at every scale.
        protocol: whose protocol the caller chose; what it sets stands in the settings themselves.
        training_step: at which step of its training the model was saved; None where that is not known.
        short_steps: whether level quick has the gains of a quarter step and of the quadratic step, too; a run's tables
            have no columns for them, what watches a training has.
    """

    transitions: tuple[int, ...]
    depths: tuple[int, ...]
    level: Level = Level.GRID
    tokens: bool = False
    paths: bool = False
    batch: BatchPolicy = BatchPolicy("tokens", budget=_CPU_BUDGET)
    unit_size: int = 64
    readout_dtype: str = "float32"
    scalar_checks: int = 16
    exit_threshold: float | None = None
    long: LongPolicy = "error"
    share_context: bool = False
    certify: bool = False
    trace: bool = False
    lens: int = 0
    scales_to: float | None = None
    interpolate: bool = False
    protocol: str = DEFAULT
    training_step: int | None = None
    short_steps: bool = False

    def __post_init__(self) -> None:
        if not self.depths:
            raise LoopscopeError(f"nothing to measure: give {setting('transitions')}, {setting('depths')} or both")
        if self.tokens and not self.transitions:
            raise LoopscopeError(
                f"{setting('tokens', True)} stores updates token by token: name some with {setting('transitions')}"
            )
        if self.paths and self.level is not Level.FULL:
            raise LoopscopeError(f"{setting('paths', True)} stores the FP64 analysis: add {setting('level', 'full')}")
        if self.certify and not self.transitions:
            raise LoopscopeError(
                f"{setting('certify', True)} certifies updates: name some with {setting('transitions')}"
            )
        if self.trace and not self.deepest:
            raise LoopscopeError(
                f"{setting('trace', True)} follows the loops: name a depth from 1 on with {setting('depths')}"
            )
        if self.scales_to is not None and not self.transitions:
            raise LoopscopeError(
                f"{setting('scales_to', self.scales_to)} is about updates: name some with {setting('transitions')}"
            )
        if self.batch.name == "paper" and self.unit_size % 2:
            raise LoopscopeError(
                f"{setting('batch_size', 'paper')} pairs questions in source order:"
                f" {setting('unit_size', self.unit_size)} must be even"
            )
        if self.batch.name == "paper" and self.share_context:
            raise LoopscopeError(
                f"{setting('batch_size', 'paper')} runs every option with its whole context, as the paper does:"
                f" leave out {setting('share_context', True)}, or choose another {setting('batch_size')}"
            )

    @classmethod
    def of(cls, transitions: Numbers, depths: Numbers, level: Level | str, **rest: Any) -> Settings:
        """Settings with the ends of every transition added to the depths."""
        updates = depth_list("transitions", transitions)
        stored = {*depth_list("depths", depths), *updates, *(t + 1 for t in updates)}
        chosen = Level(choice("level", level, list(Level)))
        return cls(updates, tuple(sorted(stored)), chosen, **rest)

    def on(self, device_type: str, *, unpadded: bool = False) -> Settings:
        """The same settings with batches that suit a kind of device and a model that may run without padding."""
        return dataclasses.replace(self, batch=self.batch.on(device_type, unpadded=unpadded))

    def chosen(self) -> dict[str, Any]:
        """What is not as it is by default, for a manifest: a run from before there was a choice then still replays."""
        plain = Settings(self.transitions, self.depths)
        names = ["share_context", "certify", "trace", "lens", "scales_to", "interpolate", "protocol", "training_step"]
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(plain, name)}

    def runs(self, most: int) -> list[list[int]]:
        """Transitions that follow one another, at most so many at a time.

        >>> Settings.of([1, 2, 3, 5], [], "quick").runs(2)
        [[1, 2], [3], [5]]
        """
        found: list[list[int]] = []
        for transition in self.transitions:
            if not found or len(found[-1]) == most or found[-1][-1] != transition - 1:
                found.append([])
            found[-1].append(transition)
        return found

    @property
    def paper_bracket(self) -> float | None:
        """The widest bracket of the paper's protocol; None under another or at level quick."""
        return None if self.level is Level.QUICK else find_protocol(self.protocol).paper_bracket

    @property
    def spans(self) -> bool:
        """Whether rows say where their token stands in the text."""
        return self.tokens or self.trace

    @property
    def deepest(self) -> int:
        """How many loops one trip takes."""
        return self.depths[-1]
