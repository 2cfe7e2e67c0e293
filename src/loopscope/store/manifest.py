"""`manifest.json`: what was measured, with what, and how; the identity of a run.

Nothing here changes between an undisturbed run and one that was killed and resumed: times and the like go to
`events.jsonl`. Every field but those in `PROVENANCE` must be equal for a later command to continue the run.
"""

import json
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    model_validator,
)

from loopscope.errors import LoopscopeError
from loopscope.store.bounded import parse_json
from loopscope.store.hashing import sha256_bytes
from loopscope.store.layout import TaskRows, WorkUnit, plan_units
from loopscope.store.tables import SCHEMA_VERSION, Level, Table, tables_of

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Depth = Annotated[int, Field(ge=0)]

PROVENANCE = frozenset({"command_line"})
"""Fields that may differ between the command that began a run and one that continues it."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelInfo(_Part):
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


class TaskInfo(_Part):
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


class Dtypes(_Part):
    """The arithmetic of each stage."""

    states: str
    readout: str
    options: str = "float64"
    analysis: str = "float64"
    interventions: str = "bfloat16"


class BatchInfo(_Part):
    """How examples are put together into batches."""

    policy: str
    size: int | None = None
    """Examples in a batch, where that is fixed."""
    token_budget: int | None = None
    """Padded tokens in a batch, where that decides."""
    padding: str = "right"


class Manifest(_Part):
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
        """The tables that this run writes."""
        return tables_of(tokens=self.tokens, paths=self.paths)

    def units(self) -> tuple[WorkUnit, ...]:
        """The work units of this run; they follow from the manifest alone."""
        return plan_units((TaskRows(task.name, task.split, task.rows) for task in self.tasks), self.unit_size)

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
        """SHA-256 of the encoded manifest, by which every commit record names its run."""
        return sha256_bytes(self.encode())


class ManifestDamageError(Exception):
    """A manifest that this version should be able to read and cannot; the caller decides what that means."""


class OtherVersionError(LoopscopeError):
    """A manifest of another schema version."""


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest.

    Raises:
        OtherVersionError: it was written under another schema version.
        ManifestDamageError: it is not what loopscope writes.
    """
    try:
        payload = parse_json(data)
    except ValueError as error:
        raise ManifestDamageError(f"it is no JSON of a run: {error}") from error
    version = payload.get("schema_version") if isinstance(payload, dict) else None
    if type(version) is not int:
        raise ManifestDamageError("it is no JSON with a schema version")
    if version != SCHEMA_VERSION:
        remedy = (
            "upgrade loopscope to read it"
            if version > SCHEMA_VERSION
            else f"read it with the loopscope that wrote it ({payload.get('loopscope_version', 'unknown')})"
            " or measure again"
        )
        raise OtherVersionError(
            f"{where} has schema version {version} and this loopscope reads version {SCHEMA_VERSION}: {remedy}"
        )
    try:
        manifest = Manifest.model_validate(payload)
        # What cannot be written as JSON again (an infinity, half a surrogate pair) was never written by loopscope.
        _ = manifest.digest
        return manifest
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ManifestDamageError(f"{field}: {first['msg']}") from error
    except ValueError as error:
        raise ManifestDamageError("it holds what JSON cannot hold") from error


def json_bytes(value: object) -> bytes:
    """JSON as the run directory holds it: two spaces, given order, no NaN, one final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
