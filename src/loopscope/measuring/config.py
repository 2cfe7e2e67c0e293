"""`MeasureConfig`: every setting of `measure`, declared once: type, default, help, part in a run's identity.

The keyword arguments of `loopscope.measure`, the flags of `loopscope measure`, `LOOPSCOPE_*` variables, `--config`
files, the manifest's settings and the check on resume follow from it. A field without a group is not an argument: a
protocol, `model_args` or the engine sets it. Text is read as on the command line: `transitions="1-4"` means what
`--transitions 1-4` does; a caller in Python may also give the numbers themselves.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from loopscope.errors import (
    LARGEST_SEED,
    LoopscopeError,
    answers_command_line,
    choice,
    command_line_words,
    index,
    optional_text,
    parse_number,
    parse_ranges,
    setting,
    shown,
    text,
    whole,
)
from loopscope.models.registry import model_arguments, parse_name
from loopscope.store.manifest import ABSENT, LARGEST_STEP, Manifest, differences, step_in
from loopscope.store.schema import CHORD, Level, ends_of, parse_transitions
from loopscope.tasks.encoding import LoadedTask
from loopscope.tasks.known_tasks import find_benchmark
from loopscope.tasks.lm_eval_requests import is_lm_eval, lm_eval_name
from loopscope.tasks.own_task import Task, is_dataset
from loopscope.tasks.prompting import FEWSHOT_SEED, MOST_FEWSHOT
from loopscope.tasks.source_rows import LARGEST_ROW, parse_ids

LongPolicy: TypeAlias = Literal["error", "skip", "truncate-left"]
Numbers = int | str | Iterable[int]
Limits = int | Mapping[str, int] | None
Ids = tuple[int, ...] | Mapping[str, tuple[int, ...]] | None
T = TypeVar("T")

DEEPEST = 10_000
"""The deepest loop that can be asked for."""
MOST_QUESTIONS = 1_000_000_000
"""The largest number of questions that a limit, a unit or a batch can name."""
MOST_NUMBERS = 1_000_000
"""The most numbers in a list of rows, depths or transitions."""
WHAT, DATA, MODEL, NUMBERS, EXECUTION = "What to measure", "Data and prompts", "Model", "Numbers", "Execution"
GROUPS = (WHAT, DATA, MODEL, NUMBERS, EXECUTION)
PROTOCOL, MODEL_ARGS = "protocol", "model_args"
"""Groups of what is not an argument: what stands behind a protocol's name, or in `model_args`."""
PROTOCOLS: dict[str, dict[str, Any]] = {
    "loopscope": {"batch_size": "auto", "interpolate": True},
    "paper": {"batch_size": "paper", "dtype": "bfloat16"},
}
"""What each protocol sets where the caller gives nothing; `paper` also draws H_0 by its rule, where one is drawn."""
_PROTOCOL_WORDS = f"{'|'.join(PROTOCOLS)}[:NAME=VALUE,...]"
_BUDGETS, _CPU_BUDGET = {"cuda": 65536}, 4096
"""Padded tokens of a batch."""


def depth_list(name: str, given: Numbers | None) -> tuple[int, ...]:
    """Depths in increasing order, each once.

    >>> depth_list("depths", "1-4, 8"), depth_list("depths", 4), depth_list("depths", range(3))
    ((1, 2, 3, 4, 8), (4,), (0, 1, 2))
    """
    if isinstance(given, str):
        numbers = parse_ranges(given, name, largest=DEEPEST, most=DEEPEST + 1) if given else ()
    else:
        numbers = () if given is None else _numbers(name, given, DEEPEST)
    return tuple(sorted(set(numbers)))


def transition_list(name: str, given: Any) -> tuple[int, ...]:
    """Updates as they are stored (`store.schema.transition_of`), in increasing order: t for t → t+1, k>R for a chord.

    >>> transition_list("transitions", "1-2, 1>3"), transition_list("transitions", [4, "0>4"])
    ((1, 2, 100001), (4, 300000))
    """
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        return depth_list(name, given)
    found: set[int] = set()
    for entry in filter(None, [given]) if isinstance(given, str) else given:
        if isinstance(entry, str):
            found.update(parse_transitions(entry, largest=DEEPEST))
        elif type(entry) is int and entry >= CHORD and ends_of(entry)[1] <= DEEPEST:
            found.add(entry)
        else:
            found.add(whole(name, entry, 0, DEEPEST))
    return tuple(sorted(found))


def _numbers(name: str, given: Any, largest: int) -> tuple[int, ...]:
    single = index(given)
    listed = [single] if single is not None else given
    if isinstance(listed, bytes | Mapping) or not isinstance(listed, Iterable):
        raise LoopscopeError(f"{setting(name, given)} is not a number or a list of numbers: give e.g. [1, 2]")
    numbers = list(islice(listed, MOST_NUMBERS + 1))
    if len(numbers) > MOST_NUMBERS:
        raise LoopscopeError(f"{setting(name)} gives more than {MOST_NUMBERS:,} numbers: give fewer, or leave it out")
    return tuple(whole(name, number, 0, largest) for number in numbers)


def rows(given: Numbers | Mapping[str, Numbers] | None) -> Ids:
    """Source rows, for all tasks or by the name of a task.

    >>> rows("0,5,10-12"), rows(5), rows({"gsm8k": range(2)})
    ((0, 5, 10, 11, 12), (5,), {'gsm8k': (0, 1)})
    """

    def of_task(numbers: Any) -> tuple[int, ...]:
        if numbers == "":
            raise LoopscopeError(f"{setting('ids', numbers)} is empty: name rows, or leave it out")
        return parse_ids(numbers) if isinstance(numbers, str) else _numbers("ids", numbers, LARGEST_ROW)

    return _by_task("ids", given, of_task)


def limits(given: int | str | Mapping[str, int] | None) -> Limits:
    """The most questions, for all tasks or by the name of a task.

    >>> limits("100"), limits("gsm8k=100, piqa=50"), limits(3)
    (100, {'gsm8k': 100, 'piqa': 50}, 3)
    """
    if isinstance(given, str):
        entries = [entry.rpartition("=") for entry in given.split(",")]
        found = {name.strip(): parse_number(number) for name, _, number in entries}
        if None in found.values() or len(found) < len(entries) or ("" in found and entries != [("", "", given)]):
            raise LoopscopeError(
                f"{setting('limit', given)}: give one number of questions for all tasks, such as 100, or one for each"
                f" by name, such as gsm8k=100,piqa=50"
            )
        given = found.get("", found)  # type: ignore[arg-type]
    return _by_task("limit", given, lambda most: whole("limit", most, 1, MOST_QUESTIONS))


def _by_task(name: str, given: Any, checked: Callable[[Any], T]) -> T | dict[str, T] | None:
    """One value for all tasks, or by their names as the records have them, each once; None stays."""
    if given is None or not isinstance(given, Mapping):
        return None if given is None else checked(given)
    if wrong := [task for task in given if not isinstance(task, str | Task | LoadedTask)]:
        raise LoopscopeError(f"{setting(name)} takes numbers by the names of tasks; {wrong[0]!r} is not a name")
    names = [canonical(task) for task in given]
    if twice := [each for each in names if names.count(each) > 1]:
        raise LoopscopeError(f"{setting(name)} names {twice[0]} twice: name each task once")
    return {each: checked(value) for each, value in zip(names, given.values(), strict=True)}


def canonical(spec: str | Task | LoadedTask) -> str:
    """The name of the task that a specification means, as its records will call it.

    >>> canonical("ARC-Challenge:test"), canonical("mine=data/my.jsonl"), canonical("data/my.jsonl")
    ('arc_challenge', 'mine', 'my')
    """
    if not isinstance(spec, str):
        return spec.name
    if is_lm_eval(spec):
        return lm_eval_name(spec)
    name = spec.partition("=")[0] if "=" in spec else Path(spec.partition(":")[0]).name.partition(".")[0]
    benchmark = find_benchmark(name)
    return name if benchmark is None else benchmark.name


def task_list(given: Any) -> tuple[str | Task | LoadedTask, ...]:
    """Tasks: one, several as text with commas, or several as a list; names, files, `Task` objects, data sets.

    >>> task_list("gsm8k:train256, arithmetic"), task_list(["mine=data/a,b.jsonl"])
    (('gsm8k:train256', 'arithmetic'), ('mine=data/a,b.jsonl',))
    """
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",") if name.strip()]
    elif isinstance(given, PathLike | Task) or is_dataset(given):
        given = [given]
    elif isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise LoopscopeError(f"{setting('tasks', given)} is not a task: give names or files, e.g. 'arithmetic'")
    found: list[str | Task | LoadedTask] = []
    for task in given:
        if isinstance(task, Mapping):
            rows = f"{setting('tasks')} holds {shown(task)}"
            raise LoopscopeError(f"{rows}: make a task of rows with Task.from_rows([...])")
        if isinstance(task, Task | LoadedTask | str):
            found.append(text("tasks", task) if isinstance(task, str) else task)
        else:
            found.append(Task.from_dataset(task) if is_dataset(task) else text("tasks", task))
    return tuple(found)


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


def declare(
    default: Any, help: str, group: str | None = None, metavar: str | None = None, *, identity: bool | None = None,
    stored_as: str | None = None, resume: bool | None = None, always: bool = False, argument: bool = True,
    **checks: Any,
) -> Any:  # fmt: skip
    """A setting.

    Args:
        default: its value where it is left out; `...` where it may not be.
        help: what it is, in one line.
        group: under which heading the command line lists it; None for what is not an argument.
        metavar: how the command line writes its value.
        identity: whether it is part of a run's identity by itself: the manifest's field of its name, or one of its
            `settings`. By default all are but those of the group `EXECUTION`.
        stored_as: the manifest's field that holds it, where that has another name.
        resume: whether the command that continues a run may change it; by default those of the group `EXECUTION`.
        always: whether the manifest names it where it has its default, too.
        argument: whether it is an argument of `loopscope.measure`, besides being a flag.
        checks: constraints of pydantic.
    """
    identity = group != EXECUTION if identity is None else identity
    resume = group == EXECUTION and not identity if resume is None else resume
    facts: dict[str, Any] = {"group": group, "identity": identity, "stored_as": stored_as, "resume": resume}
    facts |= {"always": always, "argument": argument, "metavar": metavar}
    return Field(default, description=help, json_schema_extra=facts, **checks)


def facts_of(field: Any) -> dict[str, Any]:
    """What `declare` was given besides the default and the help."""
    return dict(field.json_schema_extra)


def _checked(check: Any) -> BeforeValidator:
    """A check that is called with the setting's name and what was given."""
    return BeforeValidator(lambda given, info: check(info.field_name, given))


def _number(given: Any) -> Any:
    """A whole number of any library as Python's; text stays for pydantic to read."""
    number = given if isinstance(given, str) else index(given)
    if number is None:
        raise ValueError("it is not a whole number")
    return number


def _text_or_none(name: str, given: Any) -> str | None:
    """A name or a path; a dtype or a device of torch by its name."""
    given = str(given).removeprefix("torch.") if type(given).__module__ == "torch" else given
    return optional_text(name, given)


def _device(name: str, given: Any) -> str | None:
    named = _text_or_none(name, given)
    if named is None or named.partition(":")[0] not in ("auto", "cpu", "cuda", "mps"):
        raise LoopscopeError(f"there is no device {shown(named)}: choose cpu, cuda, cuda:1, mps or auto")
    return named


def _tokenizer(given: Any) -> Any:
    """A name or a file as text, an object as the tokenizer that it is now."""
    if given is None or isinstance(given, str | PathLike):
        return optional_text("tokenizer", given)
    from loopscope.models.tokenizer import from_object

    return from_object(given)


Switch = Annotated[bool, Field(strict=True)]
Whole = Annotated[int, BeforeValidator(_number)]
Seed = Annotated[int, BeforeValidator(_number), Field(ge=0, le=LARGEST_SEED)]
OptionalText = Annotated[str | None, _checked(_text_or_none)]
Depths = Annotated[tuple[int, ...], _checked(depth_list)]
Transitions = Annotated[tuple[int, ...], _checked(transition_list)]


class MeasureConfig(BaseModel):
    """The settings of `measure`, checked; `measure(config=...)` takes them together.

    >>> MeasureConfig(model="toy-ouro", tasks="arithmetic", transitions="1-3").depths
    (1, 2, 3, 4)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())

    model: Any = declare(
        ..., "From `loopscope models`, a hub name[@revision], a folder or mine.py:build.", MODEL, "NAME", identity=False
    )
    tasks: Annotated[tuple[Any, ...], BeforeValidator(task_list)] = declare(
        ..., "Tasks, separated by commas; see `loopscope tasks`.", DATA, "TASK,...", identity=False
    )
    output: OptionalText = declare(
        None, "Run directory; by default a dated folder under runs/. The same call resumes.", EXECUTION, "FOLDER"
    )
    overwrite: Switch = declare(False, "Measure again what the run directory holds.", EXECUTION)
    model_args: dict[str, Any] = declare(
        {}, "What mine.py:build is called with, or the choice of a model: ckpt=step900.", MODEL, "NAME=VALUE,..."
    )
    transitions: Transitions = declare(
        (), "Each t of an update t → t+1, or a chord 1>3; by default the first beyond the trained depth.", WHAT, "T,..."
    )
    depths: Depths = declare(
        (), "Depths where the utility is stored, besides the ends of updates, e.g. 1-8.", WHAT, "T,..."
    )
    level: Level = declare(Level.GRID, "How much is computed for every update.", WHAT)
    tokens: Switch = declare(False, "Store a row for every reference token.", WHAT)
    paths: Switch = declare(False, "Store the 257 nodes of the FP64 analysis (level full).", WHAT)
    certify: Switch = declare(False, "Enclose every update's numbers, rounding included (affine readouts).", WHAT)
    trace: Switch = declare(False, "Store a row for every reference position after every loop.", WHAT)
    lens: Whole = declare(
        0, "How many of the likeliest tokens to store after every loop, e.g. 5; implies trace.", WHAT, "N", ge=0, le=100
    )
    scales_to: float | None = declare(
        None, "Also longer steps, at scales up to this, e.g. 2.", WHAT, "SCALE", gt=1, le=4, multiple_of=0.05
    )
    protocol: str = declare(
        "loopscope", "Choices where a setting is left out: paper:readout_dtype=float64.", NUMBERS, _PROTOCOL_WORDS
    )
    initial_state: Literal["question", "paper", "official"] | None = declare(
        None, "How H_0 is drawn, where a model draws it.", NUMBERS
    )
    limit: Annotated[Limits, BeforeValidator(limits)] = declare(
        None, "At most this many questions: 100, or gsm8k=100,piqa=50.", DATA, "N", identity=False
    )
    ids: Annotated[Ids, BeforeValidator(rows)] = declare(
        None, "Only these source rows, e.g. 0,5,10-12.", DATA, "ROW,...", identity=False
    )
    data_dir: OptionalText = declare(
        None, "Folder with local copies of the benchmarks.", DATA, "FOLDER", identity=False, resume=True
    )
    template: OptionalText = declare(None, "Template file instead of the tasks' own.", DATA, "FILE", identity=False)
    num_fewshot: Whole | None = declare(None, "Examples before each question.", DATA, "N", ge=0, le=MOST_FEWSHOT)
    apply_chat_template: Switch = declare(False, "Ask in the tokenizer's own chat template.", DATA)
    batch_size: str | int | None = declare(
        None, "Questions in a batch; auto: a budget of tokens.", NUMBERS, "auto|paper|N", identity=False
    )
    device: Annotated[str, _checked(_device)] = declare(
        "auto",
        "Where the model runs; a model in memory stays where it is.",
        EXECUTION,
        "cpu|cuda|cuda:1|mps|auto",
        identity=True,
    )
    dtype: OptionalText = declare(
        None, "Dtype of weights and states; else bfloat16 or as stored.", NUMBERS, "DTYPE", stored_as="dtypes.states"
    )
    share_context: Switch = declare(False, "Run what the options of a question have in common once.", NUMBERS)
    long: LongPolicy = declare("error", "What happens to sequences that the model does not allow.", DATA, always=True)
    tokenizer: Annotated[Any, BeforeValidator(_tokenizer)] = declare(
        None, "Tokenizer instead of the model's own.", MODEL, "NAME", stored_as="tokenizer_sha256"
    )
    engine: Literal["local", "ray"] = declare("local", "In this process, or on Ray.", EXECUTION)
    workers: Whole | None = declare(None, "Model replicas of the Ray engine.", EXECUTION, "N", ge=1, le=10_000)
    progress: Literal["auto", "bar", "plain", "none"] = declare(
        "auto", "How progress is shown.", EXECUTION, argument=False
    )

    # Set by a protocol, as in protocol="loopscope:unit_size=8".
    readout_dtype: Literal["float32", "float64"] = declare(
        "float32", "Arithmetic of the readout.", PROTOCOL, stored_as="dtypes.readout"
    )
    interpolate: bool = declare(False, "Interpolate φ through a nonlinear readout where that is as good.", PROTOCOL)
    initial_seed: Seed | None = declare(
        None, "What H_0 is drawn from, where it is, plus the source row.", PROTOCOL, identity=False
    )
    scalar_checks: Whole = declare(
        16,
        "Questions of each task on which Q is computed a second way.",
        PROTOCOL,
        always=True,
        ge=0,
        le=MOST_QUESTIONS,
    )
    unit_size: Whole = declare(64, "Questions measured and stored at a time.", PROTOCOL, ge=1, le=MOST_QUESTIONS)
    fewshot_split: OptionalText = declare(None, "The split or data file that examples come from.", PROTOCOL)
    fewshot_seed: Seed = declare(FEWSHOT_SEED, "What examples are drawn from.", PROTOCOL)

    # Set by `model_args`, unless these go to code of the user's own.
    exit_threshold: float | None = declare(
        None, "Threshold of the exit gate; None takes the checkpoint's.", MODEL_ARGS, always=True, gt=0, le=1
    )

    # Set by the engine, the monitor, or what measures a stored run again.
    training_step: int | None = declare(
        None, "At which step of its training the model was saved, by its name.", resume=True, ge=0, le=LARGEST_STEP
    )
    short_steps: bool = declare(False, "Level quick has the gains of two shorter steps, too.", identity=False)
    batch: BatchPolicy = declare(BatchPolicy.parse("auto"), "How questions are put into batches.", identity=False)
    allow_code: bool = declare(True, "Whether the model's name may name code.", identity=False)
    needs_tokenizer: bool = declare(True, "Whether there are texts to encode.", identity=False)
    sample: Mapping[tuple[str, str], Collection[int]] | None = declare(
        None, "Of each task and split the source rows that are kept.", identity=False
    )
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise LoopscopeError(_in_one_line(error, type(self).model_fields)) from None
        self._given = given

    def but(self, **given: Any) -> Self:
        """The same settings with others instead of some, checked anew."""
        return type(self)(**{**self._given, **given})

    @model_validator(mode="before")
    @classmethod
    def _as_others_say(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The protocol's choices where nothing else was given, and what stands in `model_args`."""
        stated = given.get("protocol", "loopscope")
        name, colon, rest = text("protocol", stated).partition(":")
        chosen = dict(PROTOCOLS[choice("protocol", name, list(PROTOCOLS))])
        for entry in rest.split(",") if colon else ():
            option, equals, value = (word.strip() for word in entry.partition("="))
            if not equals or not value:
                raise LoopscopeError(f"{setting('protocol', stated)}: {shown(entry)} is not NAME=VALUE")
            chosen[choice("protocol", option.replace("-", "_"), list(cls.fields_of(PROTOCOL)))] = value
        args = model_arguments(given["model_args"]) if given.get("model_args") else {}
        if "model" in given and isinstance(given["model"], str | PathLike | None):
            given = {**given, "model": text("model", given["model"])}
            if not parse_name(given["model"]).is_code:
                chosen |= {name: args.pop(name) for name in cls.fields_of(MODEL_ARGS) if name in args}
        left_out = {name: value for name, value in chosen.items() if given.get(name) is None}
        return {**given, **left_out, "model_args": args, "protocol": name}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ends = {end for t in self.transitions for end in ends_of(t)}
        size = "auto" if self.batch_size is None else self.batch_size
        batch = self.batch if "batch" in self.model_fields_set else BatchPolicy.parse(size)
        names = (name for name in (self.model, *self.model_args.values()) if isinstance(name, str | PathLike))
        steps = (self.training_step, *(step_in(fspath(name)) for name in names))
        device = self.device
        if device == "auto" and not isinstance(self.model, str) and hasattr(self.model, "device"):
            from loopscope.models.in_memory import is_factory  # which needs torch; `--help` needs none

            # A model in memory stays where it is unless another place is named.
            device = device if is_factory(self.model) else str(self.model.device)
        self.__dict__.update(
            depths=tuple(sorted({*self.depths, *ends})),
            trace=self.trace or self.lens > 0,
            batch=batch,
            training_step=next((step for step in steps if step is not None), None),
            device=device,
        )
        about_updates = [name for name in ("tokens", "certify", "scales_to") if getattr(self, name)]
        if about_updates and self.depths and not self.transitions:
            named = setting(about_updates[0], getattr(self, about_updates[0]))
            raise LoopscopeError(f"{named} is about updates: name some with {setting('transitions')}")
        if self.paths and self.level is not Level.FULL:
            raise LoopscopeError(f"{setting('paths', True)} stores the FP64 analysis: add {setting('level', 'full')}")
        if self.trace and self.depths == (0,):
            raise LoopscopeError(
                f"{setting('trace', True)} follows the loops: name a depth from 1 on with {setting('depths')}"
            )
        if batch.name == "paper" and self.unit_size % 2:
            raise LoopscopeError(
                f"{setting('batch_size', 'paper')} pairs questions in source order: unit_size={self.unit_size} must be"
                f" even"
            )
        if batch.name == "paper" and self.share_context:
            raise LoopscopeError(
                f"{setting('batch_size', 'paper')} runs every option with its whole context, as the paper does: leave"
                f" out {setting('share_context', True)}, or choose another {setting('batch_size')}"
            )
        if self.fewshot_split is not None and not self.num_fewshot:
            raise LoopscopeError(
                f"{setting('fewshot_split', self.fewshot_split)} is where examples come from: say how many with"
                f" {setting('num_fewshot')}"
            )
        if self.workers is not None and self.engine == "local":
            raise LoopscopeError(
                f"{setting('workers', self.workers)} is for {setting('engine', 'ray')}: add that or leave it out"
            )
        return self

    @classmethod
    @cache
    def arguments(cls) -> dict[str, FieldInfo]:
        """The settings that are keyword arguments of `loopscope.measure`."""
        return {name: field for name, field in cls.fields_of(*GROUPS).items() if facts_of(field)["argument"]}

    @classmethod
    @cache
    def fields_of(cls, *groups: str) -> dict[str, FieldInfo]:
        """The settings of some groups."""
        return {name: field for name, field in cls.model_fields.items() if facts_of(field)["group"] in groups}

    def beyond(self, trained_depth: object, name: str) -> Self:
        """The same settings; where neither updates nor depths are named, with the first beyond the trained depth."""
        if self.depths:
            return self
        if not isinstance(trained_depth, int) or not 1 <= trained_depth < DEEPEST:
            raise LoopscopeError(
                f"{name} does not say how many loops it is trained for (trained_depth {shown(trained_depth)}): name"
                f" updates with {setting('transitions')}"
            )
        return self.model_copy(update={"transitions": (trained_depth,), "depths": (trained_depth, trained_depth + 1)})

    @property
    def model_spec(self) -> str:
        """The model's name; of a model in memory, what the run records."""
        if isinstance(self.model, str):
            return self.model
        from loopscope.models.in_memory import spec_of

        return spec_of(self.model)

    def for_manifest(self) -> dict[str, Any]:
        """What the manifest's `settings` hold: those of the identity that are not as they are by default."""
        found = {}
        for name, field in type(self).model_fields.items():
            facts, value = facts_of(field), getattr(self, name)
            stored = facts["identity"] and not facts["stored_as"] and name not in Manifest.model_fields
            if stored and (facts["always"] or value != field.default):
                found[name] = value
        return found


def choices(field: FieldInfo) -> tuple[str, ...]:
    """The words that a setting can have, where there are only some."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if get_origin(kind) is Literal:
            return get_args(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return tuple(kind)
    return ()


def _in_one_line(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """The first thing that is wrong, in the caller's words."""
    found = error.errors()[0]
    name, given = str(found["loc"][0]), found["input"]
    if found["type"] == "missing":
        return f"{setting(name)} is missing: {fields[name].description}"
    if name not in fields:
        flags = [known for known, field in fields.items() if facts_of(field)["group"] in GROUPS]
        near = difflib.get_close_matches(name, flags, n=1)
        return f"there is no setting {shown(name)}: {f'did you mean {near[0]}?' if near else ', '.join(flags)}"
    with command_line_words(facts_of(fields[name])["group"] in GROUPS and answers_command_line()):
        if words := choices(fields[name]):
            try:
                choice(name, given, words)
            except LoopscopeError as explained:
                return str(explained)
        return f"{setting(name, given)}: {found['msg'].removeprefix('Value error, ')}"


def refuse_other_settings(old: Manifest, new: Manifest) -> None:
    """Refuse to continue a run with settings that may not change."""
    found, changed = {each.field: each for each in differences(old, new)}, []
    for name, field in MeasureConfig.model_fields.items():
        facts = facts_of(field)
        place = facts["stored_as"] or (name if name in Manifest.model_fields else f"settings.{name}")
        if place in found and facts["identity"] and not facts["resume"]:
            was, now = (field.default if each == ABSENT else each for each in found[place][1:])
            changed.append(f"{name} was {was}, is {now}")
    if changed:
        raise LoopscopeError(
            f"resume refused: {'; '.join(changed)}: choose another {setting('output')}, or add"
            f" {setting('overwrite', True)} to measure again"
        )
