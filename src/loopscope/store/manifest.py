"""`manifest.json`: what was measured, with what, and how: the identity of a run, from which its work units follow.

Nothing here changes between an undisturbed run and one that was killed and resumed: times and the typed command go to
`events.jsonl`. Every field must be equal for a later command to continue the run. Types and ranges are declared here
once; a manifest that does not keep to them is refused in one line.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PositiveInt,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from typing_extensions import TypedDict  # pydantic takes that of `typing` from Python 3.12 on

from loopscope.errors import LoopscopeError, setting, shown
from loopscope.store.schema import SCHEMA_VERSION, TABLES, Level, Table, ends_of

DEEPEST = 65_536
MOST_TRANSITIONS = 4_096
MOST_UNITS = 100_000
MOST_CANDIDATES = 100
"""Of the lens."""
LARGEST_STEP = 10**18

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Depth = Annotated[int, Field(ge=0, le=DEEPEST)]
Rows = Annotated[int, Field(ge=1, le=10**9)]

_NOT_MEASURING = ("cli", "report", "stats", "studies")
"""Packages that never touch a stored number: a run may be resumed after they were edited."""


def sha256_bytes(data: bytes) -> str:
    """The hexadecimal SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def ids_sha256(example_ids: Iterable[str]) -> str:
    r"""The digest of example identifiers in order: equal only for the same examples in the same order.

    Each identifier is hashed as a JSON string on a line of its own, so no two lists run into one another.

    >>> ids_sha256(["a", "b"]) == ids_sha256(["a\nb"])
    False
    """
    return sha256_bytes(b"".join(json.dumps(example_id).encode() + b"\n" for example_id in example_ids))


@cache
def code_sha256() -> str:
    """The digest of the package's Python sources that take part in measuring, by relative path and content."""
    root = Path(__file__).resolve().parents[1]
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    names = [name for name in names if name.split("/")[0] not in _NOT_MEASURING]
    return sha256_bytes("".join(f"{name} {sha256_bytes((root / name).read_bytes())}\n" for name in names).encode())


_STEP = re.compile(
    r"(?:^|[^a-z])(?:global_?step|step|checkpoint|ckpt|iteration|iter)[-_=.]?(\d{1,12})([km]?)(?![a-z\d])",
    re.IGNORECASE | re.ASCII,
)
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000}


def step_in(name: str) -> int | None:
    """The training step that a checkpoint's folder or its parent, a revision or a file name contains.

    >>> [step_in(name) for name in ("runs/step-1000", "checkpoint-200", "global_step30", "org/x@stage1-step5-tokens4B")]
    [1000, 200, 30, 5]
    >>> [step_in(name) for name in ("main", "toy-ouro", "step-50K", "runs/0700", "step-20/hf", "loop:ouro-1.4b:10-20")]
    [None, None, 50000, 700, 20, None]
    """
    folder = PurePath(name)
    if re.fullmatch("[0-9]{1,12}", folder.name):
        return int(folder.name)
    found = (matches[-1] for part in (folder.name, folder.parent.name) if (matches := _STEP.findall(part)))
    return next((int(number) * _FACTORS[unit.lower()] for number, unit in found), None)


def step_order(name: str) -> tuple[bool, int, str]:
    """What sorts checkpoints: those that contain a step by it, the others after them by name."""
    step = step_in(name)
    return (step is None, step or 0, name)


class Stored(BaseModel):
    """What a JSON file of the run directory holds: declared fields and no others, finite numbers, texts of a size."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_max_length=10_000)

    def encode(self) -> bytes:
        """The bytes of the file: JSON with two spaces, in the declared order, one final newline."""
        payload = self.model_dump(mode="json")
        return (json.dumps(payload, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


_END, _DIGEST = b"\n}\n", b',\n  "sha256": "'


class SealedJson(Stored):
    """JSON whose last field is the digest of the rest."""

    def encode(self) -> bytes:
        """The bytes of the file."""
        payload = super().encode()
        return payload.removesuffix(_END) + _DIGEST + sha256_bytes(payload).encode() + b'"' + _END

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read such a file; ValueError unless its digest, which is checked before parsing, is that of the rest."""
        payload, _, digest = data.rpartition(_DIGEST)
        if digest != sha256_bytes(payload + _END).encode() + b'"' + _END:
            raise ValueError("it does not match its own digest")
        return cls.model_validate_json(payload + _END, strict=True)


REQUESTED_BY = {"certificates": "certify", "trace": "trace", "longer_steps": "scales_to"}
"""Tables that a run has where `settings` holds this."""


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """A range of consecutive examples of one task; it is measured and committed as a whole.

    Attributes:
        index: Number of the unit in the run, from 0; it names the unit's files.
        start: First `row` of the unit.
        stop: One past its last `row`.
    """

    index: int
    task: str
    split: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The stem of the unit's files."""
        return f"{self.index:06d}"


class ModelInfo(Stored):
    """The looped model and the exact weights that were read.

    Attributes:
        spec: What the user typed: a hub name, a folder, an embedded model.
        name: The name that tables show.
        revision: Resolved revision on the hub; absent for folders and embedded models.
        weights: SHA-256 of every weight file by its name inside the checkpoint; of a model without files, of its
            tensors and of its class's code; empty for random weights.
        boundary: Where the state is taken, in a phrase.
        design: What distinguishes models of its family, where the family says it: `topology`, `injection`,
            `depth_prior`.
    """

    spec: str
    name: str
    family: str
    revision: str | None = None
    weights: dict[str, Sha256]
    config_sha256: Sha256 | None = None
    dtype: str
    affine_readout: bool
    boundary: str
    trained_depth: Depth | None = None
    design: dict[str, str] = Field({})
    random_weights: bool = False
    toy: bool = False


class TaskInfo(Stored):
    """One task of a run: which examples, worded how.

    Attributes:
        subset: Named subset, such as `train256`.
        rows: Examples measured in this run.
        rows_available: Examples of the split before any choice.
        ids_sha256: `ids_sha256` of the measured examples, in order.
        skipped: Identifiers left out by the length policy.
    """

    name: str
    split: str
    subset: str | None = None
    kind: Literal["solution", "options"]
    rows: Rows
    rows_available: Rows
    limit: Rows | None = None
    ids_sha256: Sha256
    data_sha256: Sha256
    data_revision: str | None = None
    template_sha256: Sha256
    skipped: tuple[str, ...] = ()


class Dtypes(Stored):
    """The arithmetic of each stage."""

    states: str
    readout: str
    options: str = "float64"
    analysis: str = "float64"
    interventions: str = "bfloat16"


class BatchInfo(Stored):
    """How examples are put together into batches.

    Attributes:
        size: Examples in a batch, where that is fixed.
        token_budget: Padded tokens in a batch, where that decides.
    """

    policy: str
    size: Rows | None = None
    token_budget: Annotated[int, Field(ge=1, le=2**40)] | None = None
    padding: str = "right"


class StoredSettings(TypedDict, total=False):
    """Those of the further settings that readers of a run rely on; the others are kept as they are."""

    __pydantic_config__ = ConfigDict(extra="allow", allow_inf_nan=False)  # type: ignore[misc]
    certify: bool
    trace: bool
    lens: Annotated[int, Field(ge=0, le=MOST_CANDIDATES)]
    scales_to: Annotated[float, Field(ge=1, le=1000)] | None
    interpolate: bool
    protocol: Literal["paper", "loopscope"]
    scalar_checks: Annotated[int, Field(ge=0, le=10**9)]
    exit_threshold: Annotated[float, Field(ge=0, le=1)] | None
    training_step: Annotated[int, Field(ge=0, le=LARGEST_STEP)] | None
    initial_state: str


_SETTINGS = TypeAdapter(StoredSettings)


class Manifest(Stored):
    """Everything that identifies a run.

    Attributes:
        transitions: Each t of an update t → t+1 that is analysed; of a chord k → R, k + 100000·(R − k − 1).
        depths: Depths at which the utility is stored; both ends of every transition are among them.
        libraries: Versions of the libraries whose arithmetic or file format enters the run.
        seeds: Of what is drawn at random: `initial_state` where the model draws one, `random_weights`.
        unit_size: Examples in a work unit.
        settings: Any further setting that decides a number: length policy, gate threshold, implementation.
    """

    schema_version: PositiveInt = SCHEMA_VERSION
    loopscope_version: str
    code_sha256: Sha256
    model: ModelInfo
    tokenizer_sha256: Sha256 | None = None
    tasks: Annotated[tuple[TaskInfo, ...], Field(min_length=1)]
    transitions: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(max_length=MOST_TRANSITIONS)]
    depths: Annotated[tuple[Depth, ...], Field(min_length=1, max_length=2 * MOST_TRANSITIONS)]
    level: Level
    tokens: bool = False
    paths: bool = False
    dtypes: Dtypes
    device: str
    libraries: dict[str, str]
    seeds: dict[str, int]
    batch: BatchInfo
    unit_size: Rows
    settings: Annotated[dict[str, JsonValue], AfterValidator(_SETTINGS.validate_python)] = Field({})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("transitions", "depths"):
            values = getattr(self, name)
            if list(values) != sorted(set(values)):
                raise ValueError(f"{name} must increase without repetition, got {list(values)}")
        ends = {depth for t in self.transitions for depth in ends_of(t)}
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
        chosen |= {name: bool(self.settings.get(wanted)) for name, wanted in REQUESTED_BY.items()}
        tables = (table for name, table in TABLES.items() if chosen.get(name, True))
        return tuple(table for table in tables if table.since <= self.schema_version)

    @property
    def protocol(self) -> str:
        """`paper` or `loopscope`; runs from before there was a choice are loopscope's."""
        return str(self.settings.get("protocol", "loopscope"))

    @property
    def initial_state(self) -> str | None:
        """The rule by which H_0 was drawn, `question` unless the run says otherwise; None where no seed is named."""
        if "initial_state" not in self.seeds:
            return None
        return str(self.settings.get("initial_state", "question"))

    @property
    def training_step(self) -> int | None:
        """The step of its training that the model was measured at, as it is stored, or as its name contains it."""
        stored = self.settings.get("training_step")
        return stored if isinstance(stored, int) else step_in(self.model.spec)

    @property
    def lens(self) -> int:
        """How many of the likeliest tokens every row of `trace` holds; 0 where there is no lens."""
        stored = self.settings.get("lens")
        return stored if isinstance(stored, int) else 0

    def units(self) -> tuple[WorkUnit, ...]:
        """Every task, in order, in ranges of `unit_size` examples, the last one shorter."""
        size = self.unit_size
        count = sum(-(-task.rows // size) for task in self.tasks)
        if count > MOST_UNITS:
            larger = f"choose a larger {setting('unit_size')}"
            raise LoopscopeError(f"a run has at most {MOST_UNITS:,} work units, not {count:,}: {larger}")
        ranges = ((task, start) for task in self.tasks for start in range(0, task.rows, size))
        return tuple(
            WorkUnit(index, task.name, task.split, start, min(start + size, task.rows))
            for index, (task, start) in enumerate(ranges)
        )

    def task(self, name: str, split: str) -> TaskInfo:
        """The task of that name and split."""
        return next(task for task in self.tasks if (task.name, task.split) == (name, split))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the manifest's file, by which every commit record names its run."""
        return sha256_bytes(self.encode())


class _Version(BaseModel):
    schema_version: PositiveInt


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest of this schema version or an older one, of which fields that are gone are left out.

    Raises:
        LoopscopeError: it was written under a newer schema version.
        ValueError: it is not what loopscope writes.
    """
    try:
        version = _Version.model_validate_json(data, strict=True).schema_version
        if version > SCHEMA_VERSION:
            raise LoopscopeError(
                f"{where} has schema version {str(version)[:20]} and this loopscope reads versions up to"
                f" {SCHEMA_VERSION}: upgrade loopscope to read it"
            )
        manifest = Manifest.model_validate_json(data, strict=True, extra="ignore")
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        raise ValueError(f"{field}: {first['msg'][:200]}") from error
    vars(manifest)["digest"] = sha256_bytes(data)
    return manifest


class Difference(NamedTuple):
    """One setting that is not the same, by its dotted name."""

    field: str
    old: Any
    new: Any

    def __str__(self) -> str:
        part = self.field.removeprefix("model.weights.")
        is_hash = part != self.field or self.field.endswith("_sha256")
        if not is_hash or ABSENT in (self.old, self.new):
            return f"{self.field} was {shown(self.old)}, is now {shown(self.new)}"
        if part == "tensors":
            return "the weights are not the same"
        if part != self.field:
            return f"the model is not the same ({part})"
        return f"{self.field.removesuffix('_sha256')} is not the same"


ABSENT = "absent"


def differences(old: Manifest, new: Manifest) -> list[Difference]:
    """Every field that forbids `new` to continue the run of `old`, the protocol first, then in the manifest's order."""
    one, other = (dict(_flat("", _compared(manifest))) for manifest in (old, new))
    found = (Difference(name, one.get(name, ABSENT), other.get(name, ABSENT)) for name in {**one, **other})
    # Other differences may follow from that of the protocols.
    return sorted((each for each in found if each.old != each.new), key=lambda each: each.field != "settings.protocol")


def _compared(manifest: Manifest) -> dict[str, Any]:
    payload = manifest.model_dump(mode="json")
    # By name rather than by place: a task that was added is then named as such.
    payload["task"] = {f"{task['name']}/{task['split']}": task for task in payload["tasks"]}
    payload["tasks"] = [*payload["task"]]
    payload["settings"]["protocol"] = manifest.protocol
    return payload


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else key, inner)
    else:
        yield name, value
