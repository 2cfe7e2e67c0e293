"""`manifest.json`: what was measured, with what, and how: the identity of a run, from which its work units follow.

Nothing here changes between an undisturbed run and one that was killed and resumed: times and the like go to
`events.jsonl`. Every field but those in `PROVENANCE` must be equal for a later command to continue the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)

from loopscope.errors import LoopscopeError, setting
from loopscope.store.hashing import Sha256, json_bytes, parse_json, sha256_bytes
from loopscope.store.schema import SCHEMA_VERSION, TABLES, Level, Table

Depth = Annotated[int, Field(ge=0)]

ASKED_BY = {
    **{"certificates": "certify", "trace": "trace", "longer_steps": "scales_to"},
    **{"as_in_paper": "protocol", "interpolation": "interpolate"},
}
"""Tables that a run has where `settings` holds this; `as_in_paper` if it is about updates, from level grid on."""

PROVENANCE = frozenset({"command_line"})
"""Fields that may differ between the command that began a run and one that continues it."""


MAX_UNITS = 1_000_000
"""Work units of a run, at most: their files are numbered with six digits."""


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """A range of consecutive examples of one task; it is measured and committed as a whole."""

    index: int
    """Number of the unit in the run, from 0; it names the unit's files."""
    task: str
    split: str
    start: int
    """First `row` of the unit."""
    stop: int
    """One past its last `row`."""

    @property
    def name(self) -> str:
        """The stem of the unit's files."""
        return f"{self.index:06d}"

    @property
    def size(self) -> int:
        """How many examples the unit holds."""
        return self.stop - self.start


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelInfo(_Frozen):
    """The looped model and the exact weights that were read."""

    spec: str
    """What the user typed: a hub name, a folder, an embedded model."""
    name: str
    """The name that tables show."""
    family: str
    revision: str | None = None
    """Resolved revision on the hub; absent for folders and embedded models."""
    weights: dict[str, Sha256]
    """SHA-256 of every weight file by its name inside the checkpoint; of a model without files, of its tensors and of
    its class's code; empty for random weights."""
    config_sha256: Sha256 | None = None
    dtype: str
    affine_readout: bool
    boundary: str
    """Where the state is taken, in a phrase."""
    trained_depth: int | None = None
    random_weights: bool = False
    toy: bool = False


class TaskInfo(_Frozen):
    """One task of a run: which examples, worded how."""

    name: str
    split: str
    subset: str | None = None
    """Named subset, such as `train256`."""
    kind: Literal["solution", "options"]
    rows: Annotated[int, Field(ge=1)]
    """Examples measured in this run."""
    rows_available: Annotated[int, Field(ge=1)]
    """Examples of the split before any choice."""
    limit: int | None = None
    ids_sha256: Sha256
    """`ids_sha256` of the measured examples, in order."""
    data_sha256: Sha256
    data_revision: str | None = None
    template_sha256: Sha256
    skipped: tuple[str, ...] = ()
    """Identifiers left out by the length policy."""


class Dtypes(_Frozen):
    """The arithmetic of each stage."""

    states: str
    readout: str
    options: str = "float64"
    analysis: str = "float64"
    interventions: str = "bfloat16"


class BatchInfo(_Frozen):
    """How examples are put together into batches."""

    policy: str
    size: int | None = None
    """Examples in a batch, where that is fixed."""
    token_budget: int | None = None
    """Padded tokens in a batch, where that decides."""
    padding: str = "right"


class Manifest(_Frozen):
    """Everything that identifies a run."""

    schema_version: int = SCHEMA_VERSION
    loopscope_version: str
    code_sha256: Sha256
    model: ModelInfo
    tokenizer_sha256: Sha256 | None = None
    tasks: Annotated[tuple[TaskInfo, ...], Field(min_length=1)]
    transitions: tuple[Depth, ...]
    """Each t of an update t → t+1 that is analysed."""
    depths: Annotated[tuple[Depth, ...], Field(min_length=1)]
    """Depths at which the utility is stored; both ends of every transition are among them."""
    level: Level
    tokens: bool = False
    paths: bool = False
    dtypes: Dtypes
    device: str
    libraries: dict[str, str]
    """Versions of the libraries whose arithmetic or file format enters the run."""
    seeds: dict[str, int]
    """Of what is drawn at random: `initial_state` where the model draws one, `random_weights`."""
    batch: BatchInfo
    unit_size: Annotated[int, Field(ge=1)]
    """Examples in a work unit."""
    settings: dict[str, JsonValue] = {}
    """Any further setting that decides a number: length policy, gate threshold, implementation."""
    command_line: tuple[str, ...] = ()
    """The command that began the run, as typed."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("transitions", "depths"):
            values = getattr(self, name)
            if list(values) != sorted(set(values)):
                raise ValueError(f"{name} must increase without repetition, got {list(values)}")
        ends = {depth for t in self.transitions for depth in (t, t + 1)}
        if not ends <= set(self.depths):
            raise ValueError(f"depths lack the ends {sorted(ends - set(self.depths))} of the transitions")
        tasks = [(task.name, task.split) for task in self.tasks]
        if len(set(tasks)) != len(tasks):
            raise ValueError(f"a task and split may occur once, got {tasks}")
        if self.paths and self.level is not Level.FULL:
            raise ValueError("paths are stored at level full only")
        return self

    def tables(self) -> tuple[Table, ...]:
        """The tables of this run that this version knows."""
        chosen = {"tokens": self.tokens, "paths": self.paths}
        chosen |= {name: bool(self.settings.get(wanted)) for name, wanted in ASKED_BY.items()}
        chosen["as_in_paper"] &= bool(self.transitions) and self.level is not Level.QUICK
        left_out = {name for name, wanted in chosen.items() if not wanted}
        known = (table for name, table in TABLES.items() if name not in left_out)
        return tuple(table for table in known if table.since <= self.schema_version)

    @property
    def protocol(self) -> str:
        """`paper` or `loopscope`; runs from before there was a choice are loopscope's."""
        return str(self.settings.get("protocol", "loopscope"))

    @property
    def initial_state(self) -> str | None:
        """The rule by which H_0 was drawn, `question` unless the run says otherwise; None where no seed is named."""
        if "initial_state" not in self.seeds:
            return None
        _, _, spelled = self.model.spec.rpartition("initial_state=")
        chosen = spelled.partition(",")[0] if "initial_state=" in self.model.spec else "question"
        return str(self.settings.get("initial_state", chosen))

    @property
    def shards(self) -> tuple[str, ...]:
        """What every unit has a file of: the tables."""
        return tuple(table.name for table in self.tables())

    @property
    def lens(self) -> int:
        """How many of the likeliest tokens every row of `trace` holds; 0 where there is no lens."""
        held = self.settings.get("lens", 0)
        return held if isinstance(held, int) else 0

    def units(self) -> tuple[WorkUnit, ...]:
        """Every task, in order, in ranges of `unit_size` examples, the last one shorter."""
        size = self.unit_size
        count = sum(-(-task.rows // size) for task in self.tasks)
        if count > MAX_UNITS:
            larger = f"choose a larger {setting('unit_size')}"
            raise LoopscopeError(f"a run has at most {MAX_UNITS} work units, not {count}: {larger}")
        ranges = ((task, start) for task in self.tasks for start in range(0, task.rows, size))
        return tuple(
            WorkUnit(index, task.name, task.split, start, min(start + size, task.rows))
            for index, (task, start) in enumerate(ranges)
        )

    def task(self, name: str, split: str) -> TaskInfo:
        """The task of that name and split."""
        for task in self.tasks:
            if (task.name, task.split) == (name, split):
                return task
        raise KeyError(f"the run has no task {name} ({split})")

    def encode(self) -> bytes:
        """The one form in which this manifest is written."""
        return json_bytes(self.model_dump(mode="json"))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the manifest's file, by which every commit record names its run."""
        return sha256_bytes(self.encode())


class ManifestDamageError(Exception):
    """A manifest that this version should be able to read and cannot; the caller decides what that means."""


class NewerVersionError(LoopscopeError):
    """A manifest of a newer schema version."""


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest of this schema version or an older one, of which fields that are gone are left out.

    Raises:
        NewerVersionError: it was written under a newer schema version.
        ManifestDamageError: it is not what loopscope writes.
    """
    try:
        payload = parse_json(data)
    except ValueError as error:
        raise ManifestDamageError(f"it is no JSON of a run: {error}") from error
    version = payload.get("schema_version") if isinstance(payload, dict) else None
    if type(version) is not int or version < 1:
        raise ManifestDamageError("it is no JSON with a schema version")
    if version > SCHEMA_VERSION:
        raise NewerVersionError(
            f"{where} has schema version {version} and this loopscope reads versions up to {SCHEMA_VERSION}:"
            " upgrade loopscope to read it"
        )
    try:
        manifest = Manifest.model_validate(payload, extra="forbid" if version == SCHEMA_VERSION else "ignore")
        # What cannot be written as JSON again (an infinity, half a surrogate pair) was never written by loopscope.
        manifest.encode()
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(name) for name in first["loc"]) or "the whole"
        raise ManifestDamageError(f"{field}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise ManifestDamageError("it holds what JSON cannot hold") from error
    vars(manifest)["digest"] = sha256_bytes(data)
    return manifest


LARGEST_STEP = 10**18
_MOST_DIGITS = 12
_STEP = re.compile(
    r"(?:^|[^a-z])(?:global_?step|step|checkpoint|ckpt|iteration|iter)[-_=.]?(\d{1,12})([km]?)(?![a-z\d])",
    re.IGNORECASE | re.ASCII,
)
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000}


def step_in(name: str) -> int | None:
    """The training step that a checkpoint's folder or its parent, a revision or a file name tells.

    >>> [step_in(name) for name in ("runs/step-1000", "checkpoint-200", "global_step30", "org/x@stage1-step5-tokens4B")]
    [1000, 200, 30, 5]
    >>> [step_in(name) for name in ("step-50K", "iter_0000100", "runs/0700", "step-20/hf", "ckpt=step900")]
    [50000, 100, 700, 20, 900]
    >>> [step_in(name) for name in ("main", "toy-ouro", "data/2024/model", "loop:ouro-1.4b:10-20")]
    [None, None, None, None]
    """
    folder = PurePath(name)
    if folder.name.isascii() and folder.name.isdecimal() and len(folder.name) <= _MOST_DIGITS:
        return int(folder.name)
    for part in (folder.name, folder.parent.name):
        found = _STEP.findall(part)
        if found:
            number, unit = found[-1]
            return int(number) * _FACTORS[unit.lower()]
    return None


def training_step(manifest: Manifest) -> int | None:
    """The step that a run was measured at, as it is stored, or as an older run's specification tells it."""
    stored = manifest.settings.get("training_step")
    return stored if isinstance(stored, int) else step_in(manifest.model.spec)


def step_order(name: str) -> tuple[Any, ...]:
    """What sorts checkpoints: those that tell a step by it, the others after them by name."""
    step = step_in(name)
    return (step is None, step or 0, name)


class Difference(NamedTuple):
    """One setting that is not the same, by its dotted name."""

    field: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.field} was {_short(self.old)}, is now {_short(self.new)}"


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def differences(old: Manifest, new: Manifest) -> list[Difference]:
    """Every field that forbids `new` to continue the run of `old`, the protocol first, then in the manifest's order."""
    found: list[Difference] = []
    one, other = (manifest.model_dump(mode="json", exclude=set(PROVENANCE)) for manifest in (old, new))
    # Older manifests name this seed for every model. Whether a model draws a state follows from the model.
    if "initial_state" not in one["seeds"].keys() & other["seeds"].keys():
        for seeds in (one["seeds"], other["seeds"]):
            seeds.pop("initial_state", None)
    # Older manifests do not name the rule of its draw where the specification does.
    if "initial_state=" in old.model.spec:
        one["settings"].pop("initial_state", None)
        other["settings"].pop("initial_state", None)
    for manifest, payload in ((old, one), (new, other)):
        payload["settings"]["protocol"] = manifest.protocol
    _walk("", one, other, found)
    # Other differences may follow from that of the protocols.
    return sorted(found, key=lambda entry: entry.field != "settings.protocol")


def _walk(field: str, old: Any, new: Any, found: list[Difference]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            name = f"{field}.{key}" if field else str(key)
            _walk(name, old.get(key, ABSENT), new.get(key, ABSENT), found)
    elif field == "tasks":
        # By name rather than by place: a task that was added is then named as such.
        if [*_by_name(old)] != [*_by_name(new)] and sorted(_by_name(old)) == sorted(_by_name(new)):
            found.append(Difference("order of tasks", [*_by_name(old)], [*_by_name(new)]))
        _walk("task", _by_name(old), _by_name(new), found)
    elif old != new:
        found.append(Difference(field, old, new))


def _by_name(tasks: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{task['name']}/{task['split']}": task for task in tasks}


def _short(value: Any) -> str:
    if isinstance(value, dict) and "name" in value:
        return "present"
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return f"{value[:12]}…"
    text = repr(value)
    return text if len(text) <= 60 else text[:28] + "…" + text[-28:]
