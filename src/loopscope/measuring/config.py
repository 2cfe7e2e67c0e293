"""`MeasureConfig`: every setting of `measure`, declared once: type, default, help, part in a run's identity.

The keyword arguments of `loopscope.measure`, the flags of `loopscope measure`, `LOOPSCOPE_*` variables, `--config`
files, the manifest's settings and the check on resume follow from it. A field without a group is not an argument: a
protocol, `model_args` or the engine sets it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from os import PathLike, fspath
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
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
    setting,
    shown,
    text,
)
from loopscope.measuring.arguments import (
    DEEPEST,
    MOST_QUESTIONS,
    BatchPolicy,
    Ids,
    Limits,
    depth_list,
    limits,
    rows,
    scales_end,
    task_list,
    transition_list,
)
from loopscope.models.registry import parse_name
from loopscope.models.user_models import model_arguments
from loopscope.store.manifest import LARGEST_STEP, Manifest
from loopscope.store.schema import CHORD, Level, ends_of
from loopscope.tasks.prompting import FEWSHOT_SEED, MOST_FEWSHOT
from loopscope.training_steps import step_in

LongPolicy: TypeAlias = Literal["error", "skip", "truncate-left"]
WHAT, DATA, MODEL, NUMBERS, EXECUTION = "What to measure", "Data and prompts", "Model", "Numbers", "Execution"
GROUPS = (WHAT, DATA, MODEL, NUMBERS, EXECUTION)
PROTOCOL, MODEL_ARGS = "protocol", "model_args"
"""Groups of what is not an argument: what stands behind a protocol's name, or in `model_args`."""
PROTOCOLS: dict[str, dict[str, Any]] = {
    "loopscope": {"batch_size": "auto", "interpolate": True},
    "paper": {"batch_size": "paper", "dtype": "bfloat16"},
}
"""What each protocol sets where the caller gives nothing; `paper` also draws H_0 by its rule, where one is drawn."""
PAPER_BRACKET = 1e-4
"""The paper's widest bracket around an optimum, by bisection; with its envelope, FP32 residuals, adaptive extremes."""
_PROTOCOL_WORDS = f"{'|'.join(PROTOCOLS)}[:NAME=VALUE,...]"
_DEVICES, _DEVICE_WORDS = ("auto", "cpu", "cuda", "mps"), "cpu|cuda|cuda:1|mps|auto"
_AUTO = BatchPolicy.parse("auto")


def declare(
    default: Any,
    help: str,
    group: str | None = None,
    metavar: str | None = None,
    *,
    identity: bool | None = None,
    stored_as: str | None = None,
    resume: bool | None = None,
    always: bool = False,
    argument: bool = True,
    **checks: Any,
) -> Any:
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


def facts_of(field: FieldInfo) -> dict[str, Any]:
    """What `declare` was given besides the default and the help."""
    assert isinstance(field.json_schema_extra, dict), "every setting is declared with `declare`"
    return dict(field.json_schema_extra)


def _checked(check: Any) -> BeforeValidator:
    """A check of `errors` or `arguments`, called with the setting's name and what was given."""

    def called(given: Any, info: ValidationInfo) -> Any:
        return check(info.field_name, given)

    return BeforeValidator(called)


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


def _model(given: Any) -> Any:
    return text("model", given) if isinstance(given, str | PathLike | None) else given


def _batch_size(given: Any) -> str | int | None:
    if given is None:
        return None
    policy = BatchPolicy.parse(given)
    return policy.size if policy.name == "questions" else str(given)


def _device(name: str, given: Any) -> str | None:
    named = _text_or_none(name, given)
    if named is None or named.partition(":")[0] not in _DEVICES:
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
OptionalText = Annotated[str | None, _checked(_text_or_none)]
Depths = Annotated[tuple[int, ...], _checked(depth_list)]
Transitions = Annotated[tuple[int, ...], _checked(transition_list)]


class MeasureConfig(BaseModel):
    """The settings of `measure`, checked; `measure(config=...)` takes them together.

    >>> MeasureConfig(model="toy-ouro", tasks="arithmetic", transitions="1-3").depths
    (1, 2, 3, 4)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())

    model: Annotated[Any, BeforeValidator(_model)] = declare(
        ..., "From `loopscope models`, a hub name[@revision], a folder or mine.py:build.", MODEL, "NAME", identity=False
    )
    tasks: Annotated[tuple[Any, ...], BeforeValidator(task_list)] = declare(
        ..., "Tasks, separated by commas; see `loopscope tasks`.", DATA, "TASK,...", identity=False
    )
    output: OptionalText = declare(
        None, "Run directory; by default a dated folder under runs/. The same call resumes.", EXECUTION, "FOLDER"
    )
    overwrite: Switch = declare(False, "Measure again what the run directory holds.", EXECUTION)
    model_args: Annotated[dict[str, Any], BeforeValidator(model_arguments)] = declare(
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
    scales_to: Annotated[float | None, AfterValidator(scales_end)] = declare(
        None, "Also longer steps, at scales up to this, e.g. 2.", WHAT, "SCALE"
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
    batch_size: Annotated[str | int | None, BeforeValidator(_batch_size)] = declare(
        None, "Questions in a batch; auto: a budget of tokens.", NUMBERS, "auto|paper|N", identity=False
    )
    device: Annotated[str, _checked(_device)] = declare(
        "auto", "Where the model runs; a model in memory stays where it is.", EXECUTION, _DEVICE_WORDS, identity=True
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
    initial_seed: Whole | None = declare(
        None,
        "What H_0 is drawn from, where it is, plus the source row.",
        PROTOCOL,
        identity=False,
        ge=0,
        le=LARGEST_SEED,
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
    fewshot_seed: Whole = declare(FEWSHOT_SEED, "What examples are drawn from.", PROTOCOL, ge=0, le=LARGEST_SEED)

    # Set by `model_args`, unless these go to code of the user's own.
    exit_threshold: float | None = declare(
        None, "Threshold of the exit gate; None takes the checkpoint's.", MODEL_ARGS, always=True, gt=0, le=1
    )

    # Set by the engine, the monitor, or what measures a stored run again.
    training_step: int | None = declare(
        None, "At which step of its training the model was saved, by its name.", resume=True, ge=0, le=LARGEST_STEP
    )
    short_steps: bool = declare(False, "Level quick has the gains of two shorter steps, too.", identity=False)
    batch: BatchPolicy = declare(_AUTO, "How questions are put into batches.", identity=False)
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
        protocol, chosen = protocol_settings(given.get("protocol", "loopscope"), list(cls.fields_of(PROTOCOL)))
        args, model = model_arguments(given.get("model_args")), given.get("model")
        if isinstance(model, str | PathLike) and not parse_name(text("model", model)).is_code:
            chosen |= {name: args.pop(name) for name in cls.fields_of(MODEL_ARGS) if name in args}
        left_out = {name: value for name, value in chosen.items() if given.get(name) is None}
        return {**given, **left_out, "model_args": args, "protocol": protocol}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ends = {end for t in self.transitions for end in ends_of(t)}
        batch = self.batch if "batch" in self.model_fields_set else BatchPolicy.parse(self.batch_size or "auto")
        self.__dict__.update(
            depths=tuple(sorted({*self.depths, *ends})),
            trace=self.trace or self.lens > 0,
            batch=batch,
            training_step=self.training_step if self.training_step is not None else self._step_in_names(),
        )
        self._check_what()
        self._check_batches()
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

    def _check_what(self) -> None:
        """Refuse what stores nothing."""
        for name in ("tokens", "certify", "scales_to"):
            value = getattr(self, name)
            if value and self.depths and not self.transitions:
                raise LoopscopeError(
                    f"{setting(name, value)} is about updates: name some with {setting('transitions')}"
                )
        if self.paths and self.level is not Level.FULL:
            raise LoopscopeError(f"{setting('paths', True)} stores the FP64 analysis: add {setting('level', 'full')}")
        if self.trace and self.depths == (0,):
            raise LoopscopeError(
                f"{setting('trace', True)} follows the loops: name a depth from 1 on with {setting('depths')}"
            )

    def _check_batches(self) -> None:
        if self.batch.name == "paper" and self.unit_size % 2:
            raise LoopscopeError(
                f"{setting('batch_size', 'paper')} pairs questions in source order: unit_size={self.unit_size} must be"
                f" even"
            )
        if self.batch.name == "paper" and self.share_context:
            raise LoopscopeError(
                f"{setting('batch_size', 'paper')} runs every option with its whole context, as the paper does:"
                f" leave out {setting('share_context', True)}, or choose another {setting('batch_size')}"
            )

    def _step_in_names(self) -> int | None:
        """The training step in the model's name, or in an argument of the function that makes it."""
        names = (name for name in (self.model, *self.model_args.values()) if isinstance(name, str | PathLike))
        steps = (step_in(fspath(name)) for name in names)
        return next((step for step in steps if step is not None), None)

    @classmethod
    def arguments(cls) -> dict[str, FieldInfo]:
        """The settings that are keyword arguments of `loopscope.measure`."""
        return {name: field for name, field in cls.fields_of(*GROUPS).items() if facts_of(field)["argument"]}

    @classmethod
    def fields_of(cls, *groups: str) -> dict[str, FieldInfo]:
        """The settings of some groups."""
        return {name: field for name, field in cls.model_fields.items() if facts_of(field)["group"] in groups}

    def on(self, device_type: str, *, unpadded: bool = False) -> Self:
        """The same settings with batches that suit a kind of device and a model that may run without padding."""
        return self.model_copy(update={"batch": self.batch.on(device_type, unpadded=unpadded)})

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

    def runs(self, most: int) -> list[list[int]]:
        """Transitions that follow one another, at most so many at a time.

        >>> MeasureConfig(model="toy-ouro", tasks="arithmetic", transitions=[1, 2, 3, 5]).runs(2)
        [[1, 2], [3], [5]]
        """
        found: list[list[int]] = []
        for transition in self.transitions:
            if not found or len(found[-1]) == most or found[-1][-1] != transition - 1 or transition >= CHORD:
                found.append([])
            found[-1].append(transition)
        return found

    @property
    def paper_bracket(self) -> float | None:
        """The widest bracket of the paper's protocol; None under another or at level quick."""
        return PAPER_BRACKET if self.protocol == "paper" and self.level is not Level.QUICK else None

    @property
    def deepest(self) -> int:
        """How many loops one pass takes."""
        return self.depths[-1]

    @property
    def model_in_memory(self) -> Any:
        """The model in memory, or the function that makes one; None where the model is named."""
        return None if isinstance(self.model, str) else self.model

    @property
    def model_spec(self) -> str:
        """The model's name; of a model in memory, what the run records."""
        if isinstance(self.model, str):
            return self.model
        from loopscope.models.in_memory import spec_of  # which needs torch; `--help` needs none

        return spec_of(self.model)

    @property
    def model_device(self) -> str:
        """The device; a model in memory stays where it is unless another one is named."""
        if self.device != "auto" or not hasattr(self.model, "device"):
            return self.device
        from loopscope.models.in_memory import is_factory

        return self.device if is_factory(self.model) else str(self.model.device)

    def for_manifest(self) -> dict[str, Any]:
        """What the manifest's `settings` hold: those of the identity that are not as they are by default."""
        found = {}
        for name, field in type(self).model_fields.items():
            facts, value = facts_of(field), getattr(self, name)
            stored = facts["identity"] and not facts["stored_as"] and name not in Manifest.model_fields
            if stored and (facts["always"] or value != field.default):
                found[name] = value
        return found


def protocol_settings(given: object, options: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """A protocol's name, and the settings that it and what stands behind its name choose.

    >>> protocol_settings("paper:unit_size=8", ["unit_size"])
    ('paper', {'batch_size': 'paper', 'dtype': 'bfloat16', 'unit_size': '8'})
    """
    name, colon, rest = text("protocol", given).partition(":")
    chosen = dict(PROTOCOLS[choice("protocol", name, list(PROTOCOLS))])
    for entry in rest.split(",") if colon else ():
        option, equals, value = (word.strip() for word in entry.partition("="))
        if not equals or not value:
            raise LoopscopeError(f"{setting('protocol', given)}: {shown(entry)} is not NAME=VALUE")
        chosen[choice("protocol", option.replace("-", "_"), options)] = value
    return name, chosen


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
    changed = [
        f"{name} was {_in_words(was)}, is {_in_words(now)}"
        for name, was, now in ((name, recorded(old, name), recorded(new, name)) for name in MeasureConfig.model_fields)
        if was != now and not facts_of(MeasureConfig.model_fields[name])["resume"]
    ]
    if changed:
        raise LoopscopeError(
            f"resume refused: {'; '.join(changed)}: choose another {setting('output')}, or add"
            f" {setting('overwrite', True)} to measure again"
        )


def recorded(manifest: Manifest, name: str) -> Any:
    """A setting as a manifest records it; None where it is not part of the identity by itself."""
    field = MeasureConfig.model_fields[name]
    facts = facts_of(field)
    value: Any = manifest
    place = facts["stored_as"] or name
    if not facts["identity"]:
        return None
    if place.partition(".")[0] not in Manifest.model_fields:
        return manifest.settings.get(name, field.default)
    for part in place.split("."):
        value = getattr(value, part)
    return value


def _in_words(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
